// @ts-check
/** The page of a job: asks for the figures of its trials, draws them, and follows the job while it runs. */

import { drawFront, drawHypervolume, drawTrace } from "./charts.mjs";
import { wireCopyButtons } from "./copy.mjs";
import { Drawer } from "./drawer.mjs";
import { byId, element, knobs } from "./elements.mjs";
import { offerExplanation } from "./explanation.mjs";
import { loadFigures } from "./figures.mjs";
import { JobEvents } from "./job_events.mjs";
import { refreshMoments } from "./moments.mjs";
import { ask, askPage } from "./rest.mjs";
import { Recommendation } from "./recommendation.mjs";
import { TrialTable } from "./table.mjs";

/** @typedef {import("./figures.mjs").Figures} Figures */

const REFRESH_EVERY_MS = 1000;
/** Where the server does not answer, it is asked less and less often. */
const LONGEST_WAIT_MS = 30_000;
const LOST = "The connection is lost; trying again. Figures are those of before.";

const page = byId("job").dataset;
const job = page.job ?? "";

/** @type {Figures | null} */
let figures = null;
/** @type {number | null} */
let limitMs = page.limit ? Number(page.limit) : null;
/** @type {any} */
let front = null;
/** @type {any} */
let growth = null;
let refreshedAt = 0;
let waitMs = REFRESH_EVERY_MS;
let isRefreshing = false;
let hasNews = false;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

const recommendation = new Recommendation(job);
const drawer = new Drawer(job, drawTrace);
/** @type {TrialTable | null} */
let table = null;

/** Whether the job may still find something, as far as the page knows. */
function isActive() {
  return ["queued", "running"].includes(figures?.state ?? page.state ?? "");
}

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
  return isActive() ? "Drawn once there is a point inside the limits." : "No point is inside the limits, so that nothing grew.";
}

function noDots() {
  const words = isActive() ? "The first trial that ends is drawn here." : "No trial has figures that could be drawn.";
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
  picture();
}

/** Let the picture that is printed in the chart's place be that of now; it is asked for when somebody prints. */
function picture() {
  const image = /** @type {HTMLImageElement} */ (byId("front-picture"));
  image.classList.remove("is-there");
  image.loading = "lazy";
  const url = new URL(image.src);
  if (limitMs === null) url.searchParams.delete("limit_ms");
  else url.searchParams.set("limit_ms", String(limitMs));
  image.src = url.href;
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
  waitMs = isLoaded ? REFRESH_EVERY_MS : Math.min(2 * waitMs, LONGEST_WAIT_MS);
  isRefreshing = false;
  tell("figures", isLoaded ? "" : LOST);
  hasNews ||= !isLoaded;
  if (hasNews) plan();
}

function plan() {
  hasNews = true;
  clearTimeout(timer);
  timer = setTimeout(() => void refresh(), Math.max(0, refreshedAt + waitMs - Date.now()));
}

/** Put those parts of the page in place that are written anew; the others keep focus and scrolling. */
async function replaceParts() {
  try {
    const fresh = await askPage(location.pathname);
    if (!fresh.getElementById("job")) return false;
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
    wirePrint();
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
    const answer = await ask("POST", `/v1/jobs/${encodeURIComponent(job)}/cancel`);
    tell("cancel", answer.ok ? "" : `The job was not cancelled: ${answer.problem.detail}`);
    if (answer.ok) return;
    button.removeAttribute("disabled");
    button.textContent = "Cancel job";
  });
}

/** What is wrong now, by what it is of. @type {Map<string, string>} */
const wrong = new Map();

/**
 * Say what is wrong; nothing takes back what was said of the same.
 * @param {"events" | "figures" | "cancel"} what
 * @param {string} words
 */
function tell(what, words) {
  wrong.delete(what);
  if (words) wrong.set(what, words);
  const status = byId("connection");
  status.hidden = wrong.size === 0;
  status.textContent = [...new Set(wrong.values())].join(" ");
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

function explain() {
  offerExplanation(job, figures?.trials.number.length ?? 0, isActive());
}

function follow() {
  new JobEvents(job, Number(page.lastEvent), {
    onEvent: happened,
    onLost: (isLost) => {
      tell("events", isLost ? LOST : "");
      if (isLost) plan(); // it may be the key that is no longer taken
    },
    onEnd: () => {
      plan();
      setTimeout(explain, 2 * REFRESH_EVERY_MS);
    },
  });
}

/** Print once the picture is there; who prints otherwise gets the chart as it stands. */
function wirePrint() {
  const button = document.getElementById("print");
  if (!button || !button.hidden) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const image = /** @type {HTMLImageElement} */ (byId("front-picture"));
    image.loading = "eager";
    const isThere = await image.decode().then(() => true, () => false);
    image.classList.toggle("is-there", isThere);
    print();
  });
}

wireLimit();
wireCancel();
wirePrint();
void load().then(explain);
if (isActive()) follow();
