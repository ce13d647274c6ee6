// @ts-check
/** What a job found, in the server's sentences. */

import { byId, element } from "./elements.mjs";
import { ask } from "./rest.mjs";

/** Above, the explanation takes the server seconds, so that it is made only when asked for. */
const EXPLAINED_UNASKED = 1500;
/** Of its sentences, so many are shown at first. */
const AT_ONCE = 5;

/**
 * Explain at once where that is cheap; else when asked to.
 * @param {string} job
 * @param {number} numTrials
 * @param {boolean} isActive
 */
export function offerExplanation(job, numTrials, isActive) {
  if (numTrials > 0 && numTrials <= EXPLAINED_UNASKED) {
    void explain(job);
    return;
  }
  if (numTrials === 0) {
    const words = isActive ? "Told once trials have ended." : "No trial has ended, so that nothing can be told.";
    byId("explanation").replaceChildren(element("p", { class: "quiet" }, words));
    return;
  }
  const words = `Which knobs moved energy and latency, told from ${numTrials.toLocaleString("en")} trials: takes some seconds.`;
  byId("explanation").replaceChildren(element("p", { class: "quiet" }, words), explainer(job, "Explain"));
}

/** @param {string} job */
async function explain(job) {
  const place = byId("explanation");
  place.replaceChildren(element("p", { class: "skeleton" }, "Loading"), element("p", { class: "skeleton" }, "Loading"));
  const answer = await ask("GET", `/v1/jobs/${encodeURIComponent(job)}/explanation`);
  if (!answer.ok) {
    place.replaceChildren(element("p", {}, answer.problem.detail), explainer(job, "Try again"));
    return;
  }
  const { sentences, nearest_misses: misses } = answer.data;
  const told = misses.length ? sentences.slice(1) : sentences; // the first one names the misses, which the page lists
  place.replaceChildren(told.length ? listOf(told.slice(0, AT_ONCE)) : element("p", { class: "quiet" }, "Nothing can be told yet."));
  if (told.length <= AT_ONCE) return;
  const title = element("summary", {}, "What each knob did, and how sure it is");
  place.append(element("details", {}, title, listOf(told.slice(AT_ONCE))));
}

/**
 * A button that explains.
 * @param {string} job
 * @param {string} words
 */
function explainer(job, words) {
  const button = element("button", { type: "button" }, words);
  button.addEventListener("click", () => void explain(job));
  return button;
}

/** @param {string[]} sentences */
function listOf(sentences) {
  const list = element("ul", { class: "found" });
  for (const sentence of sentences) list.append(element("li", {}, sentence.replaceAll(" %", "\u00a0%")));
  return list;
}
