// Users with passwords, and tokens, that the cluster keeps. What is in files of a broker is not known here.

import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { el, plural, setText, show, Table, time } from "./dom.js";
import { newToken, verifiersOf } from "./secrets.js";

const ROWS_MAX = 200;
const UNKNOWN_METHOD = -32601;
const ROLES = [["viewer", "viewer: looks"], ["metrics", "metrics: reads figures alone"], ["operator", "operator: changes queues, hands over"], ["admin", "admin: all"]];

export class UsersView {
  title = "Users";
  refreshMs = 12000;

  constructor() {
    this.said = el("p", { class: "quiet", role: "status" });
    this.addUser = el("button", { type: "button", id: "add-user", disabled: true, onclick: () => this.#addUser() }, "Add a user…");
    this.addToken = el("button", { type: "button", id: "add-token", disabled: true, onclick: () => this.#addToken() }, "Add a token…");
    this.users = new Table("Users", [
      { title: "User", long: true, value: (row) => row.user },
      { title: "Set", value: (row) => time(row.at_ms) },
      { title: "By", long: true, value: (row) => row.by ?? "" },
      { title: "Actions", value: (row) => this.#userButtons(row), id: (row) => [row.user, broker.mayAdminister()] },
    ], { key: (row) => row.user });
    this.tokens = new Table("Tokens", [
      { title: "Token", long: true, value: (row) => row.name },
      { title: "Role", value: (row) => row.role },
      { title: "Set", value: (row) => time(row.at_ms) },
      { title: "By", long: true, value: (row) => row.by ?? "" },
      { title: "Actions", value: (row) => this.#tokenButtons(row), id: (row) => [row.name, broker.mayAdminister()] },
    ]);
    this.lists = el("div", { hidden: true },
      el("section", { "aria-labelledby": "users-title" }, el("h2", { id: "users-title" }, "Users with passwords"),
        el("div", { class: "tools" }, this.addUser), this.users.element),
      el("section", { "aria-labelledby": "tokens-title" }, el("h2", { id: "tokens-title" }, "Tokens for this page and for programs"),
        el("div", { class: "tools" }, this.addToken), this.tokens.element));
    this.element = el("div", {}, el("h2", { class: "unseen" }, "Users and tokens"), this.said, this.lists);
  }

  async refresh() {
    try {
      const [users, tokens] = await Promise.all([broker.call("users", { action: "list" }), broker.call("tokens", { action: "list" })]);
      const more = Math.max(users.length, tokens.length) > ROWS_MAX ? `; the first ${ROWS_MAX} of each are shown` : "";
      setText(this.said, `${plural(users.length, "user")} and ${plural(tokens.length, "token")} of the cluster${more}. Those in files of its brokers are told by qpid-ha user list --here and qpid-ha token list --here, on their machines.`);
      for (const button of [this.addUser, this.addToken]) button.disabled = !broker.mayAdminister();
      this.users.update(users.slice(0, ROWS_MAX));
      this.tokens.update(tokens.slice(0, ROWS_MAX));
      show(this.users.element, users.length > 0);
      show(this.tokens.element, tokens.length > 0);
      show(this.lists, true);
    } catch (error) {
      if (!(error instanceof broker.Refused) || error.status >= 0) throw error;
      setText(this.said, error.status === UNKNOWN_METHOD ? "This broker is in no cluster: its users and tokens are in files. On its machine: qpid-ha user list, qpid-ha token list." : error.message);
      show(this.lists, false);
    }
    return null;
  }

  #userButtons({ user }) {
    const disabled = !broker.mayAdminister();
    return el("span", {},
      el("button", { type: "button", class: "plain change", disabled, "aria-label": `Change the password of ${user}`, onclick: () => this.#changePassword(user) }, "Password…"),
      el("button", { type: "button", class: "plain remove", disabled, "aria-label": `Remove the user ${user}`, onclick: () => this.#remove("users", "user", user) }, "Remove…"));
  }

  #tokenButtons({ name }) {
    return el("button", { type: "button", class: "plain remove", disabled: !broker.mayAdminister(), "aria-label": `Remove the token ${name}`,
      onclick: () => this.#remove("tokens", "token", name) }, "Remove…");
  }

  async #addUser() {
    await confirmAction({
      title: "Add a user",
      does: ["All brokers of the cluster let this user in with this password. What the user may do then, the access rules say.", "Of the password the brokers get only what it can be checked by."],
      loses: "Nothing.",
      verb: "Add",
      fields: [{ name: "name", label: "Name", maxlength: 64 }, ...PASSWORD_FIELDS],
      run: async ({ name, ...typed }) => {
        await broker.call("users", { action: "set", name, verifiers: await verifiersOf(same(typed)), is_new: true });
        return `The user ${name} was added, at all brokers.`;
      },
    });
    this.onDue?.();
  }

  async #changePassword(name) {
    await confirmAction({
      title: `Change the password of ${name}`,
      does: ["From now on this password counts. Connections that logged in by the old one are ended, and so are this user's sessions of the page."],
      loses: "No message: what those connections had not settled goes back into its queues.",
      verb: "Change it",
      danger: true,
      fields: PASSWORD_FIELDS,
      run: async (typed) => {
        await broker.call("users", { action: "set", name, verifiers: await verifiersOf(same(typed)), replaces: true });
        return `${name} has this password now, at all brokers.`;
      },
    });
    this.onDue?.();
  }

  async #addToken() {
    await confirmAction({
      title: "Add a token",
      does: ["Whoever has the token may use the HTTP port of all brokers, as its role says. It is shown once, and can be read nowhere else afterwards."],
      loses: "Nothing.",
      verb: "Add",
      fields: [{ name: "name", label: "Name", maxlength: 64 }, { name: "role", label: "Role", options: ROLES }],
      run: async ({ name, role }) => {
        const { token, digest } = await newToken();
        await broker.call("tokens", { action: "set", name, role, digest, is_new: true });
        return { text: `The token ${name} was added, at all brokers. It is shown here, and never again:`, secret: token };
      },
    });
    this.onDue?.();
  }

  async #remove(method, kind, name) {
    await confirmAction({
      title: `Remove the ${kind} ${name}`,
      does: [kind === "user" ? "Nobody logs in as this user any more, and connections that did are ended. One of this name in a file of a broker counts again." : "Whoever has this token is let in no more, at once."],
      loses: `What is known of the ${kind}: to have it again, it is made anew. No message.`,
      verb: "Remove",
      danger: true,
      run: async () => {
        await broker.call(method, { action: "remove", name });
        return `The ${kind} ${name} was removed, at all brokers.`;
      },
    });
    this.onDue?.();
  }
}

const PASSWORD_FIELDS = [
  { name: "password", label: "Password", kind: "password", maxlength: 1024 },
  { name: "again", label: "The same password again", kind: "password", maxlength: 1024 },
];

function same({ password, again }) {
  if (password !== again) throw new Error("the two passwords are not the same");
  return password;
}
