// What a broker keeps of passwords and tokens is made here, so that it never sees them before somebody logs in. As
// `access/scram.py` and `tokens.py` make it.

const ITERATIONS = 8192;
const DIGESTS = [["SCRAM-SHA-512", "SHA-512", 64], ["SCRAM-SHA-256", "SHA-256", 32]];
const PRINTABLE = /^(?: |[^\p{C}\p{Z}])+$/u;

/** Why that can be no password; empty: there is no reason. */
export function passwordProblem(password) {
  const size = new TextEncoder().encode(password).length;
  if (!size || size > 1024) return "a password has 1 to 1024 bytes";
  if (!PRINTABLE.test(password) || password.normalize("NFKC") !== password) {
    return "a password has printable characters, and letters that are written in one way (Unicode's NFKC)";
  }
  return "";
}

/** The verifiers of a password, as the method `users` takes them. Throws Error. */
export async function verifiersOf(password) {
  const problem = passwordProblem(password);
  if (problem) throw new Error(problem);
  const salt = crypto.getRandomValues(new Uint8Array(16));
  const made = [];
  for (const [mechanism, hash, size] of DIGESTS) made.push(await verifier(mechanism, hash, size, password, salt));
  return made.join(" ");
}

async function verifier(mechanism, hash, size, password, salt) {
  const given = await subtle().importKey("raw", new TextEncoder().encode(password), "PBKDF2", false, ["deriveBits"]);
  const salted = await subtle().deriveBits({ name: "PBKDF2", hash, salt, iterations: ITERATIONS }, given, size * 8);
  const stored = await subtle().digest(hash, await mac(hash, salted, "Client Key"));
  const server = await mac(hash, salted, "Server Key");
  return `${mechanism}$${ITERATIONS}:${base64(salt)}$${base64(stored)}:${base64(server)}`;
}

async function mac(hash, key, text) {
  const imported = await subtle().importKey("raw", key, { name: "HMAC", hash }, false, ["sign"]);
  return subtle().sign("HMAC", imported, new TextEncoder().encode(text));
}

/** A new token, and the digest by which it is known. Throws Error. */
export async function newToken() {
  const token = base64(crypto.getRandomValues(new Uint8Array(32))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const digest = new Uint8Array(await subtle().digest("SHA-256", new TextEncoder().encode(token)));
  return { token, digest: [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("") };
}

function subtle() {
  if (!crypto.subtle) throw new Error("a browser makes secrets on pages of https and of this machine alone: qpid-ha does it, too");
  return crypto.subtle;
}

function base64(bytes) {
  return btoa(String.fromCharCode(...new Uint8Array(bytes)));
}
