// Login, which view is shown, and when it is made anew.

import * as broker from "./broker.js";
import { ChartsView } from "./charts.js";
import { ClusterView } from "./cluster.js";
import { ConnectionsView } from "./connections.js";
import { DefinitionsView } from "./definitions.js";
import { announce, el, setText, show, time } from "./dom.js";
import { ExchangesView, ExchangeView } from "./exchanges.js";
import { HistoryView } from "./history.js";
import { RulesView } from "./rules.js";
import { RemoteNodesView, SessionsView } from "./sessions.js";
import { SetView } from "./set.js";
import { SettingsView } from "./settings.js";
import { stateKind } from "./problems.js";
import { QueueView } from "./queue.js";
import { QueuesView } from "./queues.js";
import { UsersView } from "./users.js";

const NEWS_SETTLE_MS = 100;
const RETRY_MS = 2000;
const part = (id) => document.getElementById(id);
const view = { current: null, timer: 0, isBusy: false, isDueAgain: false };
let stopListening = null;
let lostAt = 0;

// --- login

function askForToken(problem = "") {
  stopListening?.();
  stopListening = null;
  clearTimeout(view.timer);
  view.current = null;
  part("view").replaceChildren();
  show(part("login"), true);
  show(part("lost"), false);
  document.querySelector("nav").hidden = true;
  show(part("logout"), false);
  for (const id of ["who", "stream", "broker-name"]) setText(part(id), "");
  part("broker-state").replaceChildren();
  setText(part("login-problem"), problem);
  part("token").focus();
}

part("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = part("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(token)) { // what no header can carry is nobody's token
    setText(part("login-problem"), "nobody has this token");
    return;
  }
  part("token").value = "";
  broker.keepToken(token);
  logIn();
});

part("password-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const password = part("password").value;
  part("password").value = "";
  part("password-login").disabled = true;
  setText(part("login-problem"), "");
  try {
    await broker.logIn(part("user").value.trim(), password);
    logIn();
  } catch (error) {
    setText(part("login-problem"), error.message);
    part("password").focus();
  } finally {
    part("password-login").disabled = false;
  }
});

part("logout").addEventListener("click", () => {
  broker.logOut();
  askForToken();
});

function logIn() {
  setText(part("login-problem"), "");
  stopListening?.();
  stopListening = broker.listen({
    onEvent,
    onLost,
    onRefused: (error) => {
      broker.forgetToken();
      askForToken(error.message);
    },
  });
}

function onEvent(kind, facts) {
  if (kind === "hello") {
    Object.assign(broker.who, facts);
    lostAt = 0;
    show(part("login"), false);
    show(part("lost"), false);
    document.querySelector("nav").hidden = false;
    show(part("logout"), true);
    setText(part("broker-name"), facts.broker);
    setText(part("who"), facts.by === "user" ? facts.token : `${facts.token} (${facts.role})`);
    setText(part("stream"), "live");
    if (view.current === null) showView();
    else due(true);
    return;
  }
  if (facts.state) showState(facts.state);
  clearTimeout(view.timer);
  view.timer = setTimeout(() => due(true), NEWS_SETTLE_MS);
}

function onLost(problem) {
  if (view.current === null) {
    setText(part("login-problem"), `${problem}; trying again`);
    return;
  }
  if (!lostAt) {
    lostAt = Date.now();
    setText(part("stream"), "not live");
    part("broker-state").replaceChildren();
    announce("The broker does not answer.");
  }
  const name = broker.who.broker;
  setText(part("lost"), `${name} has not answered since ${time(lostAt)} (${problem}). What is shown is older. The page of another broker shows how the cluster is.`);
  show(part("lost"), true);
}

function showState(state) {
  const mark = part("broker-state");
  mark.className = `state ${stateKind(state)}`;
  setText(mark, state);
}

// --- views

const VIEWS = { cluster: () => new ClusterView(), charts: () => new ChartsView(), queues: () => new QueuesView(), history: () => new HistoryView(),
  connections: () => new ConnectionsView(),
  sessions: () => new SessionsView(), "remote-nodes": () => new RemoteNodesView(), settings: () => new SettingsView(), users: () => new UsersView(),
  rules: () => new RulesView(), definitions: () => new DefinitionsView(),
  exchanges: () => new ExchangesView(), exchange: (name) => new ExchangeView(name),
  set: (name) => new SetView(name),
  queue: (name, address) => new QueueView(name, address) };

const PARTS = { set: "cluster", queue: "queues", exchange: "exchanges" }; // of which view one of them is

function place() {
  const [, name = "cluster", ...rest] = location.hash.split("/", 4);
  let given = [];
  try {
    given = rest.map(decodeURIComponent);
  } catch { // somebody typed it
    return { name: "cluster", given: [] };
  }
  return { name: name in VIEWS && (!(name in PARTS) || given[0]) ? name : "cluster", given };
}

function showView() {
  const { name, given } = place();
  clearTimeout(view.timer);
  view.current = VIEWS[name](...given);
  view.current.onDue = () => due(false);
  for (const link of document.querySelectorAll("nav a")) {
    const isIt = link.hash === `#/${PARTS[name] ?? name}`;
    if (isIt) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.current.title} · ${broker.who.broker} · qpid-ha`;
  part("view").replaceChildren(view.current.element);
  due(false);
}

window.addEventListener("hashchange", () => {
  if (view.current === null) return;
  showView();
  part("main").focus();
  window.scrollTo(0, 0);
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && view.current !== null) due(false);
});

/** Make the view anew now, or right after what is under way; then again after a while, while anybody can see it. */
async function due(isNews) {
  clearTimeout(view.timer);
  if (view.isBusy) {
    view.isDueAgain = true;
    return;
  }
  const shown = view.current;
  if (shown === null) return;
  view.isBusy = true;
  let nextMs = shown.refreshMs;
  try {
    const status = await shown.refresh(isNews);
    if (status?.state) showState(status.state);
    if (view.problem) {
      view.problem.remove();
      view.problem = null;
    }
  } catch (error) {
    nextMs = RETRY_MS;
    showProblem(error);
  } finally {
    view.isBusy = false;
  }
  if (view.current === null) return;
  if (view.isDueAgain || view.current !== shown) {
    view.isDueAgain = false;
    due(true);
  } else if (!document.hidden) {
    clearTimeout(view.timer);
    view.timer = setTimeout(() => due(false), nextMs);
  }
}

function showProblem(error) {
  if (error instanceof broker.Refused && error.status === 401) {
    broker.forgetToken();
    askForToken(error.message);
    return;
  }
  if (error instanceof broker.Unreachable && lostAt) return; // that is said already
  const isExpected = error instanceof broker.Refused || error instanceof broker.Unreachable;
  if (!isExpected) console.error(error);
  view.problem ??= el("p", { class: "banner", role: "alert" });
  setText(view.problem, isExpected ? error.message : `a bug in this page: ${error.message}`);
  if (!view.problem.isConnected) part("view").prepend(view.problem);
}

if (broker.hasToken()) logIn();
else askForToken();
