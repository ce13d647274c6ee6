// @ts-check
/** Asks this server's REST interface. Who has to log in is sent there; what is refused comes back as a problem. */

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
    location.assign(`/login?next=${encodeURIComponent(location.pathname)}`);
    return { ok: false, problem: { status: 401, title: "key needed", detail: "Log in first." } };
  }
  const data = await answer.json().catch(() => null);
  if (answer.ok) return { ok: true, status: answer.status, data };
  const problem = data ?? { status: answer.status, title: answer.statusText, detail: `The server answers ${answer.status}.` };
  return { ok: false, problem };
}

/** A key that makes a post count once. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID is not there without https
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
