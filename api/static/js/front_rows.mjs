// @ts-check
/**
 * The figures of a job's trials as the rows that the front chart draws, and how its axes lie: api/plot/rows.py and
 * api/plot/axes.py do the same for pictures, and say why. A test holds the two to each other.
 *
 * @typedef {{type: "linear" | "log", low: number, high: number}} Span
 * @typedef {Record<string, any>} Row
 * @typedef {{metric: string, origin: string, front: Row[], dominated: Row[], greyed: Row[], default: Row[], x: Span,
 *   y: Span, series: string[], max_batch: number, limit_ms: number | null, num_without_figures: number}} FrontRows
 */

const LOG_FROM = 10;
/** Of dots of a kind all are drawn up to this number; of more, one in each cell of a grid as fine as the dots are large. */
const MOST_DRAWN = 1500;
const CELLS = [120, 60];
const MARGIN = 0.05;
const ONE_PRECISION = "one precision";
const PRECISIONS = ["fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp4"];

/**
 * Return the axis that shows some values; what is no number or not above zero does not count. A limit is shown as well,
 * unless it is so far from the values that these would be pressed together.
 * @param {Iterable<number | null | undefined>} values
 * @param {{limit?: number | null, wasLog?: boolean}} [options]  a logarithmic axis stays one while a job runs
 * @returns {Span}
 */
export function spanOf(values, { limit = null, wasLog = false } = {}) {
  let low = Infinity;
  let high = 0;
  for (const value of values) {
    if (!isFigure(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (isFigure(limit) && (high === 0 || (low / LOG_FROM <= limit && limit <= high * LOG_FROM))) {
    low = Math.min(low, limit);
    high = Math.max(high, limit);
  }
  if (high === 0) return { type: "linear", low: 0, high: 1 };
  if (wasLog || high / low >= LOG_FROM) {
    const factor = Math.max(1.05, (high / low) ** MARGIN);
    return { type: "log", low: low / factor, high: high * factor };
  }
  if (low <= high / 2 || low === high) return { type: "linear", low: 0, high: high * (1 + MARGIN) };
  const margin = (high - low) * 2 * MARGIN;
  return { type: "linear", low: low - margin, high: high + margin };
}

/**
 * Return the rows of a job's figures, with the job's own limit on the latency axis unless one is given.
 * @param {any} figures  what /v1/jobs/{job}/figures answers
 * @param {{limitMs?: number | null, wasLog?: {x: boolean, y: boolean}}} [options]
 * @returns {FrontRows}
 */
export function frontRows(figures, { limitMs, wasLog = { x: false, y: false } } = {}) {
  const { trials, latency_metric: metric } = figures;
  const limit_ms = limitMs === undefined || limitMs === null ? (figures.sla[metric] ?? null) : limitMs;
  const places = new Map(trials.number.map((/** @type {number} */ number, /** @type {number} */ i) => [number, i]));
  const columns = Object.values(trials.knobs);
  const knobsOf = (/** @type {number} */ place) => JSON.stringify(columns.map((column) => column[place]));
  const front = frontRowsOf(figures, trials, places);
  const marked = defaultRows(figures, trials, places, front, knobsOf);
  const { dominated, greyed, num_without_figures } = others(figures, trials, places, knobsOf);
  const dots = [...front, ...dominated, ...greyed, ...marked];
  return {
    metric,
    origin: figures.is_simulated ? "simulated" : figures.is_estimate ? "estimate" : "measured",
    front,
    dominated,
    greyed,
    default: marked,
    x: spanOf(ends(dots, "x"), { limit: limit_ms, wasLog: wasLog.x }),
    y: spanOf(ends(dots, "y"), { wasLog: wasLog.y }),
    series: ordered([...front, ...dominated].map((row) => row.series)),
    max_batch: dots.reduce((most, row) => Math.max(most, row.batch ?? 0), 0),
    limit_ms,
    num_without_figures,
  };
}

/**
 * Return the rows of dots that are drawn: thousands that lie on each other look like one, and take seconds.
 * @param {Row[]} rows  dots that are not of the front
 * @param {Span} x @param {Span} y
 * @returns {Row[]}
 */
export function drawn(rows, x, y) {
  if (rows.length <= MOST_DRAWN) return rows;
  /** @type {Map<string, Row>} */
  const cells = new Map();
  for (const row of rows) {
    const cell = `${cellOf(row.x, x, CELLS[0])} ${cellOf(row.y, y, CELLS[1])} ${row.series} ${row.state ?? ""}`;
    if (!cells.has(cell)) cells.set(cell, row);
  }
  return [...cells.values()];
}

/** @param {number} value @param {Span} span @param {number} count */
function cellOf(value, { type, low, high }, count) {
  const share = type === "log" ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.floor(share * count);
}

/** @returns {Row[]} @param {any} figures @param {any} trials @param {Map<number, number>} places */
function frontRowsOf(figures, trials, places) {
  return figures.front
    .filter((/** @type {any} */ one) => isFigure(one.latency_ms) && isFigure(one.tok_per_j) && places.has(one.trial))
    .sort((/** @type {any} */ a, /** @type {any} */ b) => a.latency_ms - b.latency_ms)
    .map((/** @type {any} */ one) => ({
      ...rowOf(trials, /** @type {number} */ (places.get(one.trial)), one.latency_ms, one.tok_per_j),
      x_low: endOr(one.latency_low_ms, one.latency_ms),
      x_high: endOr(one.latency_high_ms, one.latency_ms),
      y_low: endOr(one.tok_per_j_low, one.tok_per_j),
      y_high: endOr(one.tok_per_j_high, one.tok_per_j),
      is_leading: one.is_leading,
      is_tied: one.tied_with.length > 0,
    }));
}

/**
 * @param {any} figures @param {any} trials @param {Map<number, number>} places @param {Row[]} front
 * @param {(place: number) => string} knobsOf
 * @returns {Row[]}
 */
function defaultRows(figures, trials, places, front, knobsOf) {
  const place = figures.default === null ? undefined : places.get(figures.default);
  if (place === undefined) return [];
  const same = knobsOf(place);
  const onFront = front.find((row) => knobsOf(row.place) === same);
  const x = onFront ? onFront.x : trials.latencies_ms[figures.latency_metric][place];
  const y = onFront ? onFront.y : trials.tok_per_j[place];
  return isFigure(x) && isFigure(y) ? [{ ...rowOf(trials, place, x, y), label: "default" }] : [];
}

/**
 * @param {any} figures @param {any} trials @param {Map<number, number>} places @param {(place: number) => string} knobsOf
 */
function others(figures, trials, places, knobsOf) {
  const onFront = new Set(
    figures.front
      .filter((/** @type {any} */ one) => places.has(one.trial))
      .map((/** @type {any} */ one) => knobsOf(/** @type {number} */ (places.get(one.trial)))),
  );
  const latencies = trials.latencies_ms[figures.latency_metric] ?? [];
  /** @type {Row[]} */
  const dominated = [];
  /** @type {Row[]} */
  const greyed = [];
  let num_without_figures = 0;
  trials.state.forEach((/** @type {string} */ state, /** @type {number} */ place) => {
    const x = latencies[place];
    const y = trials.tok_per_j[place];
    if (!isFigure(x) || !isFigure(y)) {
      if (state !== "running" && state !== "interrupted") num_without_figures += 1;
    } else if (state !== "complete") {
      greyed.push({ ...rowOf(trials, place, x, y), state });
    } else if (!onFront.has(knobsOf(place))) {
      dominated.push(rowOf(trials, place, x, y));
    }
  });
  return { dominated, greyed, num_without_figures };
}

/** @param {any} trials @param {number} place @param {number} x @param {number} y @returns {Row} */
function rowOf(trials, place, x, y) {
  const batch = trials.knobs.max_batch?.[place] ?? null;
  const precision = trials.knobs.precision?.[place] ?? null;
  return { place, trial: trials.number[place], x, y, batch, series: precision === null ? ONE_PRECISION : `${precision}` };
}

/** @param {Row[]} dots @param {"x" | "y"} axis */
function ends(dots, axis) {
  return dots.flatMap((row) => [row[axis], row[`${axis}_low`], row[`${axis}_high`]]);
}

/** @param {string[]} names */
function ordered(names) {
  const rank = (/** @type {string} */ name) => (PRECISIONS.indexOf(name) + PRECISIONS.length + 1) % (PRECISIONS.length + 1);
  return [...new Set(names)].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

/** @param {any} value @returns {value is number} */
function isFigure(value) {
  return typeof value === "number" && Number.isFinite(value) && value > 0;
}

/** @param {number | null} value @param {number} otherwise */
function endOr(value, otherwise) {
  return isFigure(value) ? value : otherwise;
}
