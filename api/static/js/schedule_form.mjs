// @ts-check
/** The form of a schedule: when it is due, with its next runs as the server counts them, and the job that it repeats. */

import { choose, clearFaults, focusFirstFault, readFields, showFaults, writeFields } from "./form_fields.mjs";
import { JobForm } from "./job_form.mjs";
import { count, energy, lasting } from "./quantities.mjs";
import { ask, newKey } from "./rest.mjs";
import { OWN_ZONE, tellOwnTimes } from "./viewer_times.mjs";

/** @typedef {import("./rest.mjs").Fault} Fault */

const WAIT_MS = 350;
const NUM_DUES = 6;

const form = /** @type {HTMLFormElement} */ (document.getElementById("schedule-form"));
const button = /** @type {HTMLButtonElement} */ (document.getElementById("submit"));
const mayTune = !button.disabled;
const start = JSON.parse(form.dataset.start ?? "{}");
const own = /** @type {HTMLElement[]} */ (["schedule-fields", "by-nightly", "by-cron", "rule-fields"].map(part));

begin();
const job = new JobForm(part("job-fields"), start.job, later);
/** As the form says it before anything is changed: what a change leaves out. */
const before = readOwn();
let isTouched = false;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
let asked = "";
/** @type {AbortController | undefined} */
let asking;
/** What is wrong by the last answers, of the calendar and of the job. */
let faults = { calendar: /** @type {Fault[]} */ ([]), job: /** @type {Fault[]} */ ([]) };
let sent = { body: "", key: "" };

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (mayTune) void submit();
});
form.addEventListener("input", () => {
  isTouched = true;
  later();
});
void job.begin().then(() => {
  if (!isTouched) before.job = job.read(); // else the job is sent whole
});

function begin() {
  const zones = part("zones");
  for (const name of Intl.supportedValuesOf("timeZone")) zones.append(new Option(name));
  for (const group of own) writeFields(group, start);
  const zone = /** @type {HTMLInputElement} */ (part("f-timezone"));
  if (!zone.value) zone.value = OWN_ZONE;
  if (start.cron) /** @type {HTMLInputElement} */ (form.querySelector('[name="kind"][value="cron"]')).checked = true;
  for (const box of targets()) box.checked = (start.notify ?? []).includes(box.value);
  if (start.overlap) choose(/** @type {HTMLSelectElement} */ (part("f-overlap")), start.overlap);
  adapt();
}

function targets() {
  return /** @type {HTMLInputElement[]} */ ([...form.querySelectorAll('[name="notify"]')]);
}

function isCron() {
  return new FormData(form).get("kind") === "cron";
}

function adapt() {
  part("by-nightly").hidden = isCron();
  part("by-cron").hidden = !isCron();
}

/** The schedule as the form says it. */
function read() {
  return { ...readOwn(), job: job.read() };
}

/** The same without its job. */
function readOwn() {
  /** @type {Record<string, any>} */
  const fields = Object.assign({}, ...own.map(readFields));
  const notify = targets().filter((box) => box.checked).map((box) => box.value);
  if (notify.length) fields.notify = notify;
  return fields;
}

function later() {
  adapt();
  clearTimeout(timer);
  asking?.abort();
  part("coming").classList.add("stale");
  part("cost").classList.add("stale");
  timer = setTimeout(() => void check(), WAIT_MS);
}

async function check() {
  asking = new AbortController();
  try {
    await Promise.all([checkCalendar(asking.signal), checkJob(asking.signal)]);
  } catch {
    return; // something was changed meanwhile, and it is asked again
  }
  showAll("");
}

/** @param {AbortSignal} signal */
async function checkCalendar(signal) {
  const { timezone = "", nightly, cron, grace_s: graceS } = read();
  const query = new URLSearchParams({ timezone, count: String(NUM_DUES) });
  if (cron) query.set("cron", cron);
  if (nightly?.start) query.set("start", nightly.start);
  if (nightly?.end) query.set("end", nightly.end);
  if (typeof graceS === "number") query.set("grace_s", String(graceS));
  const missing = missingTimes(timezone, nightly, cron);
  if (missing) {
    faults.calendar = [];
    showDues(null, missing);
    return;
  }
  asked = query.toString();
  const answer = await ask("GET", `/v1/calendar?${query}`, { signal });
  if (asked !== query.toString()) return;
  faults.calendar = answer.ok ? [] : answer.problem.errors ?? [];
  if (answer.ok) showDues(answer.data, "");
  else showDues(null, answer.problem.detail);
}

/**
 * @param {string} zone
 * @param {{start?: string, end?: string} | undefined} nightly
 * @param {string | undefined} cron
 */
function missingTimes(zone, nightly, cron) {
  if (!zone) return "Runs are shown once there is a zone.";
  if (isCron() ? !cron : !(nightly?.start && nightly.end)) return "Runs are shown once the times are complete.";
  return "";
}

/**
 * @param {any} found
 * @param {string} words
 */
function showDues(found, words) {
  const items = found?.items ?? [];
  say("coming-state", found ? (items.length ? "" : "Nothing is ever due.") : words);
  part("coming-state").hidden = items.length > 0;
  say("coming-zone", found?.timezone ?? "");
  part("dues").replaceChildren(...items.map((/** @type {any} */ due) => dueItem(due, found.timezone)));
  const changes = found?.clock_changes ?? [];
  part("changes").replaceChildren(...changes.map((/** @type {any} */ one) => Object.assign(document.createElement("p"), { textContent: one.words })));
  part("changes").hidden = changes.length === 0;
  tellOwnTimes(part("dues"));
  part("coming").classList.remove("stale");
}

/**
 * @param {{due_at: string, due_local: string}} due
 * @param {string} zone
 */
function dueItem(due, zone) {
  const item = document.createElement("li");
  const time = Object.assign(document.createElement("time"), {
    dateTime: due.due_at,
    textContent: due.due_local.slice(0, 16).replace("T", " "),
  });
  const offset = Object.assign(document.createElement("span"), { className: "quiet", textContent: ` ${due.due_local.slice(16)}` });
  const mine = Object.assign(document.createElement("span"), { className: "sub viewer" });
  mine.dataset.viewer = due.due_at;
  mine.dataset.zone = zone;
  item.append(time, offset, mine);
  return item;
}

/** @param {AbortSignal} signal */
async function checkJob(signal) {
  const answer = await ask("POST", "/v1/jobs/estimate", { body: read().job, signal });
  faults.job = answer.ok ? [] : answer.problem.errors ?? [];
  say("cost-words", answer.ok ? costWords(answer.data) : "An estimate follows once what is marked is right.");
  part("cost").classList.remove("stale");
}

/** @param {any} found */
function costWords(found) {
  const most = found.joules_at_most === null ? "" : `, ${energy(found.joules_at_most)} at most`;
  const joules = found.joules === null ? `energy not known${most}` : `about ${energy(found.joules)}${most}`;
  const kind = found.is_simulated ? " On a simulated device: nothing is measured." : "";
  return `${count(found.num_trials)} trials of ${count(found.num_points)} points: about ${lasting(found.device_s)} of the device, ${joules}.${kind}`;
}

/**
 * Show everything that is wrong; return whether anything is.
 * @param {string} detail
 */
function showAll(detail) {
  const all = [...faults.calendar, ...job.faults, ...faults.job];
  clearFaults(form);
  const left = showFaults(form, all);
  const words = all.length ? left.join(" ") : detail;
  say("refusal", words);
  part("refusal").hidden = words === "";
  return all.length > 0;
}

async function submit() {
  button.disabled = true;
  say("submit-state", "Sending …");
  await job.ready; // without its knobs the form says less than it shows
  const fields = read();
  clearTimeout(timer);
  asking?.abort();
  const answer = await send(fields);
  if (answer.ok) {
    location.assign(`/schedules/${answer.data.name === "new" ? answer.data.id : answer.data.name}`);
    return;
  }
  button.disabled = false;
  say("submit-state", "Not saved: see what is marked.");
  const problem = answer.problem;
  faults = { calendar: (problem.errors ?? []).map((one) => ({ ...one, field: one.field.replace(/^job\./, "") })), job: [] };
  if (problem.status === 409 && problem.title === "name in use") faults.calendar = [{ field: "name", detail: problem.detail }];
  const isChangedMeanwhile = problem.status === 412;
  showAll(isChangedMeanwhile ? "Somebody changed this schedule meanwhile. Load the page again to see it; what you entered here is lost then." : problem.detail);
  if (!focusFirstFault(form)) part("refusal").focus();
}

/**
 * Send a new schedule, or the fields of one that are others now.
 * @param {Record<string, any>} fields
 * @returns {Promise<import("./rest.mjs").Answer>}
 */
async function send(fields) {
  if (job.faults.length) return { ok: false, problem: { status: 422, title: "", detail: "", errors: [] } };
  const { id, version } = form.dataset;
  if (id) return ask("PATCH", `/v1/schedules/${id}`, { body: changes(fields), headers: { "If-Match": `"${version}"` } });
  const body = JSON.stringify(fields);
  if (body !== sent.body) sent = { body, key: newKey() };
  return ask("POST", "/v1/schedules", { body: fields, headers: { "Idempotency-Key": sent.key } });
}

/** @param {Record<string, any>} fields */
function changes(fields) {
  /** What a field that was emptied goes back to. */
  const usual = /** @type {Record<string, any>} */ ({ overlap: "skip", priority: 0, notify: [], grace_s: null, keep_nights: null });
  /** @type {Record<string, any>} */
  const changed = {};
  for (const name of new Set([...Object.keys(fields), ...Object.keys(before)])) {
    if (JSON.stringify(fields[name]) === JSON.stringify(before[name])) continue;
    if (name in fields) changed[name] = fields[name];
    else if (name in usual) changed[name] = usual[name];
  }
  return changed;
}

/** @param {string} id */
function part(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/**
 * @param {string} id
 * @param {string} words
 */
function say(id, words) {
  const place = part(id);
  if (place.textContent !== words) place.textContent = words;
}
