// @ts-check
/**
 * Keeps a page of the server right while jobs run: whatever happens to a job that is followed, the parts of the page
 * marked `data-live` are asked for again and those that changed are put in place. The server's templates stay the only
 * thing that knows how a line looks.
 *
 * A part names the jobs to follow as `data-follow="JOB:LAST_EVENT ..."`.
 */

import { wireCopyButtons } from "./copy.mjs";
import { refreshMoments } from "./moments.mjs";
import { askPage } from "./rest.mjs";

const AT_MOST_EVERY_MS = 800;
const BUSY_POLL_MS = 10_000;
const CALM_POLL_MS = 60_000;
const KINDS = ["job", "trial", "trial_started"];

/** @type {Map<string, EventSource>} */
const streams = new Map();
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
let refreshedAt = Date.now();
/** When the page was last what the server says. */
let rightAt = new Date();
/** Whether something happened since the page was asked for last. */
let hasNews = false;

/** Ask for the page again and put in place what changed. */
async function refresh() {
  refreshedAt = Date.now();
  hasNews = false;
  try {
    replaceParts(await askPage(location.pathname + location.search));
    rightAt = new Date();
    say("");
  } catch {
    say(`The server does not answer; figures are those of ${rightAt.toLocaleTimeString()}. Trying again.`);
  }
  follow();
  plan();
}

/** @param {Document} fresh */
function replaceParts(fresh) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (!other || part.id === "live-status") continue;
    part.setAttribute("data-follow", other.getAttribute("data-follow") ?? "");
    for (const time of other.querySelectorAll("time[data-moment]")) time.removeAttribute("title");
    if (isSame(part, other)) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
    keepChecks(part, other);
    part.replaceChildren(...other.childNodes);
    if (focused) /** @type {HTMLElement | null} */ (part.querySelector(`a[href="${CSS.escape(focused)}"]`))?.focus();
    wireCopyButtons(part);
    refreshMoments(part);
  }
}

/**
 * Let boxes that are ticked stay so.
 * @param {Element} shown
 * @param {Element} fresh
 */
function keepChecks(shown, fresh) {
  const ticked = new Set([.../** @type {NodeListOf<HTMLInputElement>} */ (shown.querySelectorAll("input:checked"))].map((box) => box.value));
  for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (fresh.querySelectorAll("input"))) box.checked = ticked.has(box.value);
}

/**
 * Whether two parts say the same, apart from what scripts did to the one that is shown.
 * @param {Element} shown
 * @param {Element} fresh
 */
function isSame(shown, fresh) {
  const copy = /** @type {Element} */ (shown.cloneNode(true));
  for (const time of copy.querySelectorAll("time[data-moment]")) time.removeAttribute("title");
  for (const button of copy.querySelectorAll("button[data-copy]")) button.setAttribute("hidden", "");
  return copy.innerHTML === fresh.innerHTML;
}

/** Follow the jobs that the page names, and no others. */
function follow() {
  const wanted = new Map(
    [...document.querySelectorAll("[data-follow]")]
      .flatMap((part) => (part.getAttribute("data-follow") ?? "").split(" "))
      .filter(Boolean)
      .map((entry) => /** @type {[string, string]} */ (entry.split(":"))),
  );
  for (const [job, stream] of streams) {
    if (wanted.has(job) && stream.readyState !== EventSource.CLOSED) continue;
    stream.close();
    streams.delete(job);
  }
  if (document.hidden) return;
  for (const [job, last] of wanted) if (!streams.has(job)) streams.set(job, open(job, last));
}

/**
 * @param {string} job
 * @param {string} last
 */
function open(job, last) {
  const stream = new EventSource(`/v1/jobs/${encodeURIComponent(job)}/events?after=${encodeURIComponent(last)}`);
  for (const kind of KINDS) {
    stream.addEventListener(kind, () => {
      hasNews = true;
      plan();
    });
  }
  return stream;
}

/** Refresh soon after news, else now and then: other jobs may have come. */
function plan() {
  clearTimeout(timer);
  if (document.hidden) return;
  const every_ms = hasNews ? AT_MOST_EVERY_MS : streams.size > 0 ? BUSY_POLL_MS : CALM_POLL_MS;
  timer = setTimeout(() => void refresh(), Math.max(0, refreshedAt + every_ms - Date.now()));
}

/** @param {string} words */
function say(words) {
  const status = document.getElementById("live-status");
  if (!status) return;
  status.hidden = words === "";
  if (status.textContent !== words) status.textContent = words;
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return void refresh();
  clearTimeout(timer);
  for (const stream of streams.values()) stream.close();
  streams.clear();
});
follow();
plan();
