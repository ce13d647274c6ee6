// @ts-check
/** Times as people read them; the words are those of api/pages/moments.py. */

const STEPS = /** @type {[number, string][]} */ ([[86_400, "d"], [3_600, "h"], [60, "min"]]);
const FAR_S = 30 * 86_400;
const EVERY_MS = 20_000;

/**
 * How long ago a time was, or until it comes.
 * @param {Date} at
 * @param {Date} now
 */
export function ago(at, now) {
  const distance = (now.getTime() - at.getTime()) / 1000;
  const seconds = Math.abs(distance);
  if (seconds >= FAR_S) return at.toISOString().slice(0, 10);
  const step = STEPS.find(([size]) => seconds >= size);
  if (!step) return distance >= 0 ? "just now" : "in a moment";
  const words = `${Math.floor(seconds / step[0])} ${step[1]}`;
  return distance > 0 ? `${words} ago` : `in ${words}`;
}

/**
 * Let the times inside an element follow the clock, and tell the reader's own time beside UTC.
 * @param {ParentNode} root
 */
export function refreshMoments(root) {
  const now = new Date();
  for (const element of root.querySelectorAll("time[data-moment]")) {
    if (!(element instanceof HTMLTimeElement)) continue;
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const words = ago(at, now);
    if (element.textContent !== words) element.textContent = words;
    const utc = at.toISOString().slice(0, 19).replace("T", " ");
    element.title = `${utc} UTC\n${at.toLocaleString()} here`;
  }
}

/** Keep the page's times right. */
export function keepMoments() {
  refreshMoments(document);
  setInterval(() => refreshMoments(document), EVERY_MS);
}
