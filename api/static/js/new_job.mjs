// @ts-check
/** The page of a new job: checks it while it is made, shows what it would search and cost, and sends it. */

import { clearFaults, focusFirstFault, showFaults } from "./form_fields.mjs";
import { JobForm } from "./job_form.mjs";
import { count, energy, lasting } from "./quantities.mjs";
import { ask, newKey } from "./rest.mjs";

const WAIT_MS = 350;

const form = /** @type {HTMLFormElement} */ (document.getElementById("job-form"));
const button = /** @type {HTMLButtonElement} */ (document.getElementById("submit"));
const mayTune = !button.disabled;
const job = new JobForm(form, JSON.parse(form.dataset.start ?? "{}"), later);

/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
/** @type {AbortController | undefined} */
let asking;
/** What was sent last, and the key that makes it one job however often it is sent. */
let sent = { body: "", key: "" };

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (mayTune) void submit();
});
void job.begin();

/** Check the job once nobody has typed for a moment. */
function later() {
  clearTimeout(timer);
  asking?.abort();
  markStale(true);
  timer = setTimeout(() => void check(), WAIT_MS);
}

/** Ask what the job would search and cost, and show that, or what is wrong. */
async function check() {
  const fields = job.read();
  asking = new AbortController();
  let answer;
  try {
    answer = await ask("POST", "/v1/jobs/estimate", { body: fields, signal: asking.signal });
  } catch {
    return; // something was changed meanwhile, and it is asked again
  }
  if (answer.ok && job.faults.length === 0) {
    clearFaults(form);
    refuse("");
    showEstimate(answer.data, fields);
    return;
  }
  say("estimate-state", "An estimate follows once what is marked is right.");
  part("estimate-figures").hidden = true;
  showProblem(answer.ok ? [] : problemFaults(answer.problem), answer.ok ? "" : answer.problem.detail);
}

/** @param {import("./rest.mjs").Problem} problem */
function problemFaults(problem) {
  return problem.errors ?? [];
}

/**
 * Show what is wrong beside its fields, and above the form what has none.
 * @param {import("./rest.mjs").Fault[]} faults
 * @param {string} detail
 */
function showProblem(faults, detail) {
  const all = [...job.faults, ...faults];
  const left = showFaults(form, all);
  refuse(all.length ? left.join(" ") : detail);
}

async function submit() {
  button.disabled = true;
  say("submit-state", "Sending …");
  await job.ready; // without its knobs the form says less than it shows
  const fields = job.read();
  const body = JSON.stringify(fields);
  if (body !== sent.body) sent = { body, key: newKey() };
  const answer = job.faults.length
    ? /** @type {import("./rest.mjs").Answer} */ ({ ok: false, problem: { status: 422, title: "", detail: "", errors: [] } })
    : await ask("POST", "/v1/jobs", { body: fields, headers: { "Idempotency-Key": sent.key } });
  if (answer.ok) {
    location.assign(`/jobs/${answer.data.id}`);
    return;
  }
  button.disabled = false;
  say("submit-state", "Not started: see what is marked.");
  clearTimeout(timer); // what is shown now must not be taken for what an earlier check finds
  asking?.abort();
  showProblem(problemFaults(answer.problem), answer.problem.detail);
  if (!focusFirstFault(form)) part("refusal").focus();
}

/**
 * @param {any} found
 * @param {Record<string, any>} fields
 */
function showEstimate(found, fields) {
  const impossible = found.num_possible === null ? "" : `, ${count(found.num_possible)} of them possible`;
  const isAll = found.num_possible === null || found.num_possible === found.num_points;
  say("est-points", `${count(found.num_points)} ${found.num_points === 1 ? "point" : "points"}${isAll ? "" : impossible}`);
  say("est-trials", found.num_repeats ? `${count(found.num_trials)}, and up to ${count(found.num_repeats)} repeats` : count(found.num_trials));
  say("est-launches", `about ${count(found.num_launches)}`);
  say("est-time", `about ${lasting(found.device_s)}, ${lasting(found.device_s_at_most)} at most`);
  const most = found.joules_at_most === null ? "" : `, ${energy(found.joules_at_most)} at most`;
  say("est-energy", found.joules === null ? `not known${most}: ${found.joules_from}` : `about ${energy(found.joules)}${most}`);
  const how = found.joules === null ? found.how : [...found.how, `Energy: ${found.joules_from}.`];
  const power = found.joules_at_most === null ? [] : ["Energy at most: the power limit over the longest time."];
  part("est-how").replaceChildren(...[...how, ...power].map((words) => Object.assign(document.createElement("li"), { textContent: words })));
  const isSimulated = found.is_simulated ? " The device is simulated: its clock runs faster than ours, and nothing is measured." : "";
  say("estimate-state", `Planned, not measured.${isSimulated}`);
  part("estimate-figures").hidden = false;
  say("as-yaml", found.yaml.trimEnd());
  say("as-command", found.command);
  say("as-curl", found.curl);
  part("not-in-file").hidden = !("priority" in fields || "previous_job" in fields);
  markStale(false);
  say("submit-state", mayTune ? "" : "Your key only reads.");
}

/** @param {boolean} isStale */
function markStale(isStale) {
  part("preview").classList.toggle("stale", isStale);
  part("estimate").classList.toggle("stale", isStale);
  const isEmpty = part("as-yaml").textContent === "";
  part("preview-state").hidden = !isStale;
  say("preview-state", isEmpty ? "Shown once the job is right." : "As it was before the last change; it follows in a moment, or once what is marked is right.");
  for (const one of part("preview").querySelectorAll("details")) one.hidden = isEmpty;
  for (const copy of /** @type {NodeListOf<HTMLButtonElement>} */ (part("preview").querySelectorAll("[data-copy]"))) copy.disabled = isStale;
  part("preview").setAttribute("aria-busy", String(isStale));
}

/** @param {string} words */
function refuse(words) {
  say("refusal", words);
  part("refusal").hidden = words === "";
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
