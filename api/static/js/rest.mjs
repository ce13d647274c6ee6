// @ts-check
/** Asks this server, for data or for pages. Who has to log in is sent there; what is refused comes back as a problem. */

/**
 * @typedef {{field: string, detail: string}} Fault
 * @typedef {{status: number, title: string, detail: string, errors?: Fault[]}} Problem
 * @typedef {{ok: true, status: number, data: any} | {ok: false, problem: Problem}} Answer
 */

/** @type {Problem} */
const UNREACHABLE = {
  status: 0,
  title: "no answer",
  detail: "The server does not answer. Try again: what is sent twice counts once.",
};

/**
 * Ask, and return the answer or the problem; an aborted question is thrown as AbortError.
 * @param {"GET" | "POST" | "PATCH" | "DELETE"} method
 * @param {string} path
 * @param {{body?: unknown, headers?: Record<string, string>, signal?: AbortSignal}} [options]
 * @returns {Promise<Answer>}
 */
export async function ask(method, path, { body, headers = {}, signal } = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body), "Content-Type": "application/json" };
  const { body: text, ...media } = sent;
  let answer;
  try {
    answer = await fetch(path, { method, body: text, headers: { Accept: "application/json", ...media, ...headers }, signal });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    return { ok: false, problem: UNREACHABLE };
  }
  if (answer.status === 401) {
    logIn();
    return { ok: false, problem: { status: 401, title: "key needed", detail: "Log in first." } };
  }
  const data = await answer.json().catch(() => null);
  if (answer.ok) return { ok: true, status: answer.status, data };
  const problem = data ?? { status: answer.status, title: answer.statusText, detail: `The server answers ${answer.status}.` };
  return { ok: false, problem };
}

/**
 * Ask for a page of this server as a document; an error is thrown, with words for people.
 * @param {string} path
 * @returns {Promise<Document>}
 */
export async function askPage(path) {
  const answer = await fetch(path, { headers: { Accept: "text/html" } });
  if (answer.redirected && new URL(answer.url).pathname === "/login") {
    logIn();
    throw new Error("Log in first.");
  }
  if (!answer.ok) throw new Error(`The server answers ${answer.status}.`);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

/** Go to the form for a key, and from there back to this page. */
export function logIn() {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
}

/** A key that makes a post count once. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID is not there without https
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
