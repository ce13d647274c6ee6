// @ts-check
/** The page of a job: asks for the figures of its trials, draws them, and follows the job while it runs. */

import { drawFront, drawHypervolume, drawTrace } from "./charts.mjs";
import { wireCopyButtons } from "./copy.mjs";
import { Drawer } from "./drawer.mjs";
import { byId, element, knobs } from "./elements.mjs";
import { loadFigures, problemOf } from "./figures.mjs";
import { JobEvents } from "./job_events.mjs";
import { refreshMoments } from "./moments.mjs";
import { Recommendation } from "./recommendation.mjs";
import { TrialTable } from "./table.mjs";

/** @typedef {import("./figures.mjs").Figures} Figures */

const REFRESH_EVERY_MS = 1000;
/** Above, the explanation takes the server seconds, so that it is made only when asked for. */
const EXPLAINED_UNASKED = 1500;
/** Of the explanation's sentences, so many are shown at first. */
const AT_ONCE = 5;

const page = byId("job").dataset;
const job = page.job ?? "";
const isActive = page.state === "queued" || page.state === "running";

/** @type {Figures | null} */
let figures = null;
/** @type {number | null} */
let limitMs = page.limit ? Number(page.limit) : null;
/** @type {any} */
let front = null;
/** @type {any} */
let growth = null;
let refreshedAt = 0;
let isRefreshing = false;
let hasNews = false;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

const recommendation = new Recommendation(job);
const drawer = new Drawer(job, drawTrace);
/** @type {TrialTable | null} */
let table = null;

/** @param {number} place */
function openPlace(place) {
  if (figures) void drawer.open(figures.trials.number[place], figures.trials.attempt[place]);
}

/** Put what is known into every part of the page. */
function show() {
  if (!figures) return;
  if (figures.trials.number.length) {
    table ??= new TrialTable(byId("trials"), { onOpen: openPlace, onCount: (words) => (byId("trials-count").textContent = words) });
    table.show(figures);
    reached("listed");
  }
  if (front) void front.update(figures);
  else if (figures.trials.tok_per_j.some((/** @type {number | null} */ one) => one !== null)) drawCharts(figures);
  else byId("front-chart").replaceChildren(...noDots());
  showGrowth();
  applyLimit();
}

function showGrowth() {
  const hasGrown = figures?.trials.hypervolume.some((/** @type {number | null} */ area) => area !== null && area > 0);
  if (growth) void growth.update(figures);
  else if (hasGrown && page.drawn) growth = drawHypervolume(byId("growth-chart"), /** @type {Figures} */ (figures));
  else if (!hasGrown) byId("growth-chart").replaceChildren(element("p", { class: "chart-loading" }, growthWords()));
}

/** @param {Figures} shown */
function drawCharts(shown) {
  front = drawFront(byId("front-chart"), shown, {
    onLimit: (metric, ms) => metric === shown.latency_metric && moveLimit(ms, { isDragged: true }),
    onSelect: (trial) => void drawer.open(trial),
  });
  front.setLimit(shown.latency_metric, limitMs);
  void front.ready.then(() => {
    reached("drawn");
    showGrowth(); // the front comes first
  });
}

/**
 * Say how far the page is: for whoever measures it or waits for it.
 * @param {"drawn" | "listed"} what
 */
function reached(what) {
  if (page[what]) return;
  page[what] = "yes";
  performance.mark(`job-${what}`);
}

function growthWords() {
  if (figures?.front.length) return "The front has no area yet: that takes a point that is faster than its slowest.";
  return isActive ? "Drawn once there is a point inside the limits." : "No point is inside the limits, so that nothing grew.";
}

function noDots() {
  const words = isActive ? "The first trial that ends is drawn here." : "No trial has figures that could be drawn.";
  return [element("p", { class: "chart-loading" }, words)];
}

/**
 * @param {number | null} ms
 * @param {{isDragged: boolean}} how
 */
function moveLimit(ms, { isDragged }) {
  limitMs = ms;
  if (isDragged) /** @type {HTMLInputElement} */ (byId("limit")).value = ms === null ? "" : String(ms);
  else if (figures) front?.setLimit(figures.latency_metric, ms);
  applyLimit();
}

function applyLimit() {
  if (!figures) return;
  const best = recommendation.show(figures, limitMs);
  front?.highlight(best ? best.trial : null);
  table?.mark(best ? best.trial : null);
}

function wireLimit() {
  const input = /** @type {HTMLInputElement} */ (byId("limit"));
  const form = byId("limit-form");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  input.addEventListener("input", () => {
    const isNone = input.value.trim() === "";
    const ms = Number(input.value);
    const isWrong = !isNone && !(ms > 0);
    input.setAttribute("aria-invalid", String(isWrong));
    byId("limit-hint").textContent = isWrong ? "Give a number above 0, or nothing for no limit." : "Or drag the line in the chart.";
    if (!isWrong) moveLimit(isNone ? null : ms, { isDragged: false });
  });
}

async function load() {
  try {
    figures = await loadFigures(job, figures);
    show();
    return true;
  } catch (error) {
    if (!figures) showFailure(error);
    return false;
  }
}

/** @param {unknown} error */
function showFailure(error) {
  const words = error instanceof TypeError ? "The server does not answer." : `The figures could not be loaded: ${String(error instanceof Error ? error.message : error)}`;
  const again = element("button", { type: "button" }, "Try again");
  again.addEventListener("click", () => void load());
  byId("front-chart").replaceChildren(element("div", { class: "chart-failed" }, element("p", {}, words), again));
}

/** Ask again for what changed: figures, and the parts of the page that the server writes. */
async function refresh() {
  if (isRefreshing) return;
  isRefreshing = true;
  hasNews = false;
  const isLoaded = (await Promise.all([load(), replaceParts()])).every(Boolean);
  refreshedAt = Date.now();
  isRefreshing = false;
  hasNews ||= !isLoaded;
  if (hasNews) plan();
}

function plan() {
  hasNews = true;
  clearTimeout(timer);
  timer = setTimeout(() => void refresh(), Math.max(0, refreshedAt + REFRESH_EVERY_MS - Date.now()));
}

/** Put those parts of the page in place that are written anew; the others keep focus and scrolling. */
async function replaceParts() {
  try {
    const answer = await fetch(location.pathname, { headers: { Accept: "text/html" } });
    if (!answer.ok) return false;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const other = fresh.getElementById(part.id);
      if (!other) part.remove();
      else if (other.innerHTML !== written.get(part.id)) {
        written.set(part.id, other.innerHTML);
        part.replaceChildren(...other.childNodes);
        wireCopyButtons(part);
        refreshMoments(part);
      }
    }
    wireCancel();
    return true;
  } catch {
    return false;
  }
}

/** What the server wrote into each part. @type {Map<string, string>} */
const written = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.id, part.innerHTML]));

function wireCancel() {
  const button = document.getElementById("cancel");
  if (!button || !button.hidden) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    if (!confirm("Cancel this job? Trials that have ended are kept.")) return;
    button.setAttribute("disabled", "");
    button.textContent = "Cancelling";
    try {
      const answer = await fetch(`/v1/jobs/${encodeURIComponent(job)}/cancel`, { method: "POST" });
      if (!answer.ok) throw new Error(await problemOf(answer));
    } catch (error) {
      button.removeAttribute("disabled");
      button.textContent = "Cancel job";
      say(`The job was not cancelled: ${error instanceof Error ? error.message : error}`);
    }
  });
}

/** @param {string} words */
function say(words) {
  const status = byId("connection");
  status.hidden = words === "";
  status.textContent = words;
}

/**
 * @param {string} kind
 * @param {any} data
 */
function happened(kind, data) {
  const now = document.getElementById("now");
  if (kind === "trial_started" && now) now.replaceChildren(`Trial ${data.number} runs: `, knobs(data.knobs));
  plan();
}

async function explain() {
  const place = byId("explanation");
  place.replaceChildren(element("p", { class: "skeleton" }, "Loading"), element("p", { class: "skeleton" }, "Loading"));
  try {
    const answer = await fetch(`/v1/jobs/${encodeURIComponent(job)}/explanation`);
    if (!answer.ok) throw new Error(await problemOf(answer));
    const { sentences, nearest_misses: misses } = await answer.json();
    const told = misses.length ? sentences.slice(1) : sentences; // the first one names the misses, which the page lists
    const more = element("details", {}, element("summary", {}, "What each knob did, and how sure it is"), foundList(told.slice(AT_ONCE)));
    place.replaceChildren(told.length ? foundList(told.slice(0, AT_ONCE)) : element("p", { class: "quiet" }, "Nothing can be told yet."));
    if (told.length > AT_ONCE) place.append(more);
  } catch (error) {
    const again = element("button", { type: "button" }, "Try again");
    again.addEventListener("click", () => void explain());
    const words = error instanceof TypeError ? "The server does not answer." : String(error instanceof Error ? error.message : error);
    place.replaceChildren(element("p", {}, words), again);
  }
}

/** @param {string[]} sentences */
function foundList(sentences) {
  const list = element("ul", { class: "found" });
  for (const sentence of sentences) list.append(element("li", {}, sentence.replaceAll(" %", "\u00a0%")));
  return list;
}

/** Explain at once where that is cheap; else when asked to. */
function offerExplanation() {
  const count = figures?.trials.number.length ?? 0;
  if (count === 0) {
    byId("explanation").replaceChildren(element("p", { class: "quiet" }, "Told once trials have ended."));
    return;
  }
  if (count <= EXPLAINED_UNASKED) {
    void explain();
    return;
  }
  const ask = element("button", { type: "button" }, "Explain");
  ask.addEventListener("click", () => void explain());
  const words = `Which knobs moved energy and latency, told from ${count.toLocaleString("en")} trials: takes some seconds.`;
  byId("explanation").replaceChildren(element("p", { class: "quiet" }, words), ask);
}

function follow() {
  new JobEvents(job, Number(page.lastEvent), {
    onEvent: happened,
    onLost: (isLost) => say(isLost ? "The connection is lost; trying again. Figures are those of before." : ""),
    onEnd: () => {
      plan();
      setTimeout(offerExplanation, 2 * REFRESH_EVERY_MS);
    },
  });
}

wireLimit();
wireCancel();
void load().then(() => offerExplanation());
if (isActive) follow();
