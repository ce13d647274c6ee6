// @ts-check
/** What can be done to schedules: run now, pause, resume, delete. Then the page is loaded again, as the server has it. */

import { ask, newKey } from "./rest.mjs";
import { tellOwnTimes } from "./viewer_times.mjs";

const DONE = "wattfront-done";
/** One key a page: a second press after a lost answer starts nothing more. */
const runKeys = /** @type {Map<string, string>} */ (new Map());

tellOwnTimes(document);
tellWhatWasDone();
for (const button of /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll("[data-act]"))) {
  button.addEventListener("click", () => void act(button));
}

/** @param {HTMLButtonElement} button */
async function act(button) {
  const place = /** @type {HTMLElement} */ (button.closest("[data-schedule]"));
  const { schedule = "", name = "" } = place.dataset;
  const what = button.dataset.act ?? "";
  if (what === "delete" && !(await isConfirmed(name))) return;
  button.disabled = true;
  const path = `/v1/schedules/${schedule}`;
  const key = runKeys.get(schedule) ?? newKey();
  runKeys.set(schedule, key);
  const answer = what === "delete"
    ? await ask("DELETE", path)
    : await ask("POST", `${path}/${what}`, { headers: what === "run" ? { "Idempotency-Key": key } : {} });
  button.disabled = false;
  if (!answer.ok) {
    show("refusal", answer.problem.detail);
    document.getElementById("refusal")?.focus();
    return;
  }
  sessionStorage.setItem(DONE, words(what, name, answer.data));
  if (what === "delete") location.assign("/schedules");
  else location.reload();
}

/**
 * @param {string} what
 * @param {string} name
 * @param {any} data
 */
function words(what, name, data) {
  if (what === "pause") return `${name} is paused.`;
  if (what === "resume") return `${name} runs again from its next due time on.`;
  if (what === "delete") return `${name} was deleted.`;
  return data?.state === "started" ? `${name} was started: its job is in the queue.` : `${name} was not started: ${data?.reason ?? ""}.`;
}

/** @param {string} name */
function isConfirmed(name) {
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("confirm"));
  /** @type {HTMLElement} */ (document.getElementById("confirm-name")).textContent = name;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

function tellWhatWasDone() {
  const told = sessionStorage.getItem(DONE);
  if (!told) return;
  sessionStorage.removeItem(DONE);
  show("done", told);
  document.getElementById("done")?.focus();
}

/**
 * @param {string} id
 * @param {string} text
 */
function show(id, text) {
  const place = document.getElementById(id);
  if (!place) return;
  place.textContent = text;
  place.hidden = false;
}
