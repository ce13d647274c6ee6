// @ts-check
/** The figures of a job's trials as the page has them: asked for once, then only what came since. */

/**
 * @typedef {object} Point a point of the front
 * @property {number} trial
 * @property {number} tok_per_j
 * @property {number | null} tok_per_j_low
 * @property {number | null} tok_per_j_high
 * @property {number} latency_ms
 * @property {number | null} latency_low_ms
 * @property {number | null} latency_high_ms
 * @property {number} output_tok_s
 * @property {number | null} mean_power_w
 * @property {number | null} gain_over_default
 * @property {number} num_windows
 * @property {string} interval_of
 * @property {boolean} is_leading
 * @property {number[]} tied_with
 */

/** @typedef {Record<string, any[]> & {knobs: Record<string, any[]>, latencies_ms: Record<string, any[]>}} Columns */

/**
 * @typedef {object} Figures what GET /v1/jobs/{job}/figures answers
 * @property {string} job
 * @property {string} model
 * @property {string} state
 * @property {boolean} is_simulated
 * @property {boolean} is_estimate
 * @property {string} latency_metric
 * @property {number | null} latency_reference_ms
 * @property {Record<string, number>} sla
 * @property {string[]} knobs
 * @property {number | null} default
 * @property {string[]} metrics
 * @property {number} next_after
 * @property {any} trials
 * @property {Point[]} front
 */

/**
 * Ask for a job's figures; only for what came since, where some are known.
 * @param {string} job
 * @param {Figures | null} [known]
 * @returns {Promise<Figures>}
 */
export async function loadFigures(job, known = null) {
  if (!known) return ask(job, -1); // which job.html has the browser ask for early
  const fresh = await ask(job, known.next_after);
  return canJoin(known, fresh) ? joined(known, fresh) : ask(job, -1);
}

/**
 * Known figures with those that came since.
 * @param {Figures} known
 * @param {Figures} fresh
 * @returns {Figures}
 */
export function joined(known, fresh) {
  const numKept = countUpTo(known.trials.number, known.next_after);
  /** @type {Record<string, any>} */
  const trials = {};
  for (const [name, column] of Object.entries(fresh.trials)) {
    trials[name] = Array.isArray(column) ? known.trials[name].slice(0, numKept).concat(column) : {};
    if (Array.isArray(column)) continue;
    for (const [inner, values] of Object.entries(column)) {
      trials[name][inner] = known.trials[name][inner].slice(0, numKept).concat(values);
    }
  }
  return { ...fresh, trials };
}

/**
 * Whether the columns are the same, and what earlier trials say still holds.
 * @param {Figures} known
 * @param {Figures} fresh
 */
function canJoin(known, fresh) {
  const isSame = (/** @type {string[]} */ one, /** @type {string[]} */ other) => one.join() === other.join();
  return (
    isSame(known.knobs, fresh.knobs) &&
    isSame(known.metrics, fresh.metrics) &&
    known.latency_reference_ms === fresh.latency_reference_ms
  );
}

/**
 * @param {number[]} numbers rising
 * @param {number} last
 */
function countUpTo(numbers, last) {
  let count = numbers.length;
  while (count > 0 && numbers[count - 1] > last) count -= 1;
  return count;
}

/**
 * @param {string} job
 * @param {number} after
 * @returns {Promise<Figures>}
 */
async function ask(job, after) {
  const query = after >= 0 ? `?after=${after}` : "";
  const answer = await fetch(`/v1/jobs/${encodeURIComponent(job)}/figures${query}`);
  if (!answer.ok) throw new Error(await problemOf(answer));
  return answer.json();
}

/**
 * What went wrong, in the server's words.
 * @param {Response} answer
 */
export async function problemOf(answer) {
  try {
    return (await answer.json()).detail ?? `status ${answer.status}`;
  } catch {
    return `status ${answer.status}`;
  }
}
