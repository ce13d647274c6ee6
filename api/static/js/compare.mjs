// @ts-check
/** /compare: draws the fronts, lets the limit be moved with the table following, and searches more fronts to choose from. */

import { drawComparison } from "./charts.mjs";
import { element, knobs } from "./elements.mjs";
import { number, times } from "./numbers.mjs";
import { ask } from "./rest.mjs";

const MAX_COMPARED = 8;
const NUM_FOUND = 200;

const chartPlace = document.getElementById("chart");
const told = document.getElementById("comparison");
const limitField = /** @type {HTMLInputElement | null} */ (document.getElementById("limit"));

if (chartPlace && told) follow(chartPlace, JSON.parse(told.textContent ?? ""));
wirePicker();

/** @param {HTMLElement} place @param {import("./charts.mjs").Comparison} comparison */
function follow(place, comparison) {
  const chart = drawComparison(place, comparison, {
    onLimit: (_, ms) => {
      if (limitField) limitField.value = `${ms}`;
      moved(comparison, ms);
    },
    onSelect: (job) => location.assign(`/jobs/${job}`),
  });
  limitField?.addEventListener("input", () => {
    const ms = Number(limitField.value);
    const limit = limitField.value.trim() !== "" && ms > 0 ? ms : null;
    chart.setLimit(comparison.metric, limit);
    moved(comparison, limit);
  });
}

/**
 * Follow the limit, also in the addresses that other forms of the page lead to.
 * @param {import("./charts.mjs").Comparison} comparison
 * @param {number | null} limit
 */
function moved(comparison, limit) {
  showBest(comparison, limit);
  for (const field of /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("input[type=hidden][name=limit_ms]"))) {
    field.value = limit === null ? "" : `${limit}`;
  }
}

/**
 * Fill the table with the best point of each front inside a limit, as api/pages/compare.py does.
 * @param {import("./charts.mjs").Comparison} comparison
 * @param {number | null} limit
 */
function showBest(comparison, limit) {
  /** @type {number | null} */
  let reference = null;
  comparison.fronts.forEach((front, i) => {
    const inside = front.points.filter((point) => limit === null || point.latency_ms <= limit);
    const best = inside.reduce((most, point) => (most && most.tok_per_j >= point.tok_per_j ? most : point), null);
    if (i === 0) reference = best?.tok_per_j ?? null;
    const row = document.querySelector(`#best tr[data-job="${front.job}"]`);
    if (row) fillRow(row, best, reference, front.points.length > 0);
  });
}

/** @param {Element} row @param {any} best @param {number | null} reference @param {boolean} hasPoints */
function fillRow(row, best, reference, hasPoints) {
  const cell = (/** @type {string} */ name) => /** @type {HTMLElement} */ (row.querySelector(`[data-cell="${name}"]`));
  cell("tok_per_j").replaceChildren(number(best?.tok_per_j));
  if (best) cell("tok_per_j").append(element("span", { class: "sub hide-s" }, `${bound(best.tok_per_j_low)} to ${bound(best.tok_per_j_high)}`));
  cell("gain").replaceChildren(best && reference ? gainOf(best.tok_per_j / reference) : "–");
  cell("latency").textContent = number(best?.latency_ms, 4);
  cell("output").textContent = number(best?.output_tok_s);
  cell("power").textContent = number(best?.mean_power_w);
  cell("knobs").replaceChildren(best ? knobs(best.knobs) : quiet(hasPoints ? "no point inside the limit" : "no point on its front"));
}

/** @param {number | null} value */
function bound(value) {
  return value === null ? "?" : number(value);
}

/** @param {string} text */
const quiet = (text) => element("span", { class: "quiet" }, text);

/** @param {number} ratio */
function gainOf(ratio) {
  return element("span", { class: `gain${ratio > 1.005 ? " better" : ratio < 0.995 ? " worse" : ""}` }, times(ratio));
}

/** Let the list be searched, and say how many are chosen. */
function wirePicker() {
  const list = document.getElementById("offered");
  const search = /** @type {HTMLInputElement | null} */ (document.getElementById("search"));
  const status = document.getElementById("picked");
  const field = document.getElementById("search-field");
  if (!list || !search || !status || !field) return;
  field.hidden = false;
  /** @type {Promise<boolean> | undefined} */
  let asked;
  search.addEventListener("input", async () => {
    asked ??= addMore(list);
    if (!(await asked)) asked = undefined; // tried again at the next key
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const line of list.children) {
      const text = `${line.textContent} ${line.querySelector("input")?.value}`.toLowerCase();
      const isShown = words.every((word) => text.includes(word));
      /** @type {HTMLElement} */ (line).hidden = !isShown;
      shown += Number(isShown);
    }
    status.textContent = shown ? `${shown} front${shown === 1 ? " fits" : "s fit"}.` : "No front fits; try part of a name, model, device or schedule.";
  });
  list.addEventListener("change", () => {
    const boxes = [...list.querySelectorAll("input")];
    const chosen = boxes.filter((box) => box.checked).length;
    for (const box of boxes) box.disabled = !box.checked && chosen >= MAX_COMPARED;
    status.textContent = `${chosen} of at most ${MAX_COMPARED} chosen.`;
  });
}

/**
 * Add the fronts that the page did not bring along; false where the server did not answer.
 * @param {HTMLElement} list
 * @returns {Promise<boolean>}
 */
async function addMore(list) {
  const known = new Set([...list.querySelectorAll("input")].map((box) => box.value));
  const answer = await ask("GET", `/v1/fronts?limit=${NUM_FOUND}`);
  if (!answer.ok) return false;
  for (const front of answer.data.items) if (!known.has(front.job)) list.append(lineOf(front));
  return true;
}

/** @param {any} front */
function lineOf(front) {
  const night = front.schedule ? `, night ${front.night} of ${front.schedule}` : "";
  const what = element("span", { class: "what" }, element("b", {}, front.name || `Job ${front.job.slice(0, 8)}`), " ");
  if (front.is_simulated) what.append(element("span", { class: "tag estimate" }, "simulated"), " ");
  what.append(quiet(`${front.model}, ${front.device}${night}`));
  const when = element("span", { class: "quiet when" }, `${front.num_points} points, ${front.created_at.slice(0, 10)}`);
  return element("li", {}, element("label", {}, element("input", { type: "checkbox", name: "job", value: front.job }), " ", what, when));
}
