// Requests to the broker that served this page, and its stream of events. The token is in each request's header and in no
// cookie, so a page of another site cannot use it.

const KEY = "qpid-ha-token";
const ANSWER_LIMIT_MS = 35000;
const SILENCE_MS = 15000; // a stream has a heartbeat each 5 s
const RETRY_MS = [500, 1000, 2000, 4000];

export const who = { token: "", role: "", by: "", broker: "", version: "" };

export class Refused extends Error {
  constructor(message, status = 0, data = null) {
    super(message);
    this.status = status;
    this.data = data;
  }
}

/** The broker did not answer: it is gone, or the network to it is. */
export class Unreachable extends Error {}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

/** Have the broker give this page a token for that user. Throws Refused, Unreachable. */
export async function logIn(user, password) {
  const body = JSON.stringify({ user, password });
  const told = await read(await send("/login", { method: "POST", body, headers: { "Content-Type": "application/json" } }));
  keepToken(told.token);
}

/** The token of a user counts no more, here and at the broker. */
export async function logOut() {
  const leaving = send("/logout", { method: "POST", keepalive: true });
  forgetToken();
  await leaving.catch(() => {}); // the broker forgets it by itself after a while
}

export function mayChange() {
  return who.role === "operator" || who.role === "admin";
}

export function mayAdminister() {
  return who.role === "admin";
}

async function send(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = { ...(token === null ? {} : { Authorization: `Bearer ${token}` }), ...options.headers };
  let response;
  try {
    response = await fetch(path, { signal: AbortSignal.timeout(ANSWER_LIMIT_MS), credentials: "omit", ...options, headers });
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "no answer in time" : "no connection");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Refused(told.error ?? `HTTP status ${response.status}`, response.status);
}

export async function get(path, params = {}) {
  const query = new URLSearchParams(params).toString();
  return read(await send(query ? `${path}?${query}` : path));
}

export async function post(path, document) {
  return read(await send(path, { method: "POST", body: JSON.stringify(document), headers: { "Content-Type": "application/json" } }));
}

/** The result of a method of JSON-RPC. Throws Refused with the broker's own words, Unreachable. */
export async function call(method, params = {}) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const reply = await read(await send("/rpc", { method: "POST", body, headers: { "Content-Type": "application/json" } }));
  if (reply.error) throw new Refused(reply.error.message, reply.error.code, reply.error.data);
  return reply.result;
}

async function read(response) {
  try {
    return await response.json();
  } catch {
    throw new Unreachable("the answer ended early");
  }
}

/** Seconds since a backup heard its primary; null: it is none. Health checks take no token. */
export async function ownLag() {
  try {
    const response = await fetch("/replica", { signal: AbortSignal.timeout(ANSWER_LIMIT_MS), credentials: "omit" });
    return (await response.json()).lag_s;
  } catch {
    return null;
  }
}

/**
 * The stream of events, opened again whenever it ends, until `stop` is called.
 * `onEvent(kind, facts)`; `onLost(problem)`; `onRefused(error)`: the token is not, or no longer, let in.
 */
export function listen({ onEvent, onLost, onRefused }) {
  let stopped = false;
  let abort = new AbortController();

  async function once() {
    abort = new AbortController();
    const watchdog = { timer: 0 };
    const alive = () => {
      clearTimeout(watchdog.timer);
      watchdog.timer = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    alive();
    try {
      const response = await send("/events", { signal: abort.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        alive();
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) handle(part);
      }
    } finally {
      clearTimeout(watchdog.timer);
    }
  }

  function handle(text) {
    const fields = {};
    for (const line of text.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
    }
    if (fields.event) onEvent(fields.event, JSON.parse(fields.data));
  }

  async function forever() {
    for (let attempt = 0; !stopped; attempt += 1) {
      const began = Date.now();
      let problem = "the connection to the broker ended";
      try {
        await once();
      } catch (error) {
        if (stopped) return;
        if (error instanceof Refused && [401, 403].includes(error.status)) {
          onRefused(error);
          return;
        }
        if (error instanceof Refused) problem = error.message;
      }
      if (stopped) return;
      onLost(problem);
      if (Date.now() - began > SILENCE_MS) attempt = 0;
      await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]));
    }
  }

  forever();
  return () => {
    stopped = true;
    abort.abort();
  };
}
