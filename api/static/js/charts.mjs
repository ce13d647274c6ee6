// @ts-check
/**
 * The charts of pages. Each function fills an element, and returns a handle at once; `handle.ready` settles when the chart
 * is there. The element must stand in a page whose head includes chart_head.html.
 *
 * A handle has `update(...)`, which keeps zoom and limit, and `remove()`; charts with a limit also `setLimit(metric, ms)`
 * (null takes it away, other metrics than the axis's are ignored), `limitMs`, and an event `limit`; dots that are pressed
 * give an event `select` with `detail` = {trial, ...}. The options onLimit and onSelect are told the same.
 *
 * @typedef {import("./vega_view.mjs").Tip} Tip
 */

import { drawn, frontRows, spanOf } from "./front_rows.mjs";
import { interval, metricWords, number } from "./numbers.mjs";
import { VegaView } from "./vega_view.mjs";

/** Of figures, by the end of a name. */
const UNITS = [
  ["_tok_per_j", "tok/J"],
  ["_mhz", "MHz"],
  ["_ms", "ms"],
  ["_w", "W"],
  ["_s", "s"],
];
/** @type {Record<string, string>} */
const ORIGINS = { simulated: "Simulated, nothing was measured", estimate: "Energy is an estimate" };
/** @type {Record<string, string>} */
const STATES = { infeasible: "outside the limits", invalid: "invalid: its figures must not be used", failed: "failed" };

/**
 * Draw tokens per joule against latency for every trial of a job.
 * @param {HTMLElement} element
 * @param {any} figures  of /v1/jobs/{job}/figures, of all trials
 * @param {{onLimit?: (metric: string, ms: number) => void, onSelect?: (trial: number) => void}} [options]
 */
export function drawFront(element, figures, options = {}) {
  return new FrontChart(element, figures, options);
}

/**
 * Draw how a job's front grew over device time.
 * @param {HTMLElement} element
 * @param {any} figures  of /v1/jobs/{job}/figures, of all trials
 */
export function drawHypervolume(element, figures) {
  return new HypervolumeChart(element, figures);
}

/**
 * Draw power and clock of a trial's device over time.
 * @param {HTMLElement} element
 * @param {Trace} trace
 * @typedef {{time_s: number[], power_w: (number | null)[], clock_mhz?: (number | null)[] | null,
 *   is_simulated: boolean, is_estimate: boolean}} Trace
 */
export function drawTrace(element, trace) {
  return new TraceChart(element, trace);
}

/**
 * Draw several fronts.
 * @param {HTMLElement} element
 * @param {Comparison} comparison
 * @param {{onLimit?: (metric: string, ms: number) => void, onSelect?: (job: string, trial: number) => void}} [options]
 * @typedef {{metric: string, limit_ms: number | null, fronts: {letter: string, job: string, title: string,
 *   is_simulated: boolean, is_estimate: boolean, points: any[]}[]}} Comparison
 */
export function drawComparison(element, comparison, options = {}) {
  return new ComparisonChart(element, comparison, options);
}

/** @param {{is_simulated: boolean, is_estimate: boolean}} from */
function originOf(from) {
  return from.is_simulated ? "simulated" : from.is_estimate ? "estimate" : "measured";
}

/** @param {{is_simulated: boolean, is_estimate: boolean}[]} fronts */
function originOfAll(fronts) {
  const origins = new Set(fronts.map(originOf));
  return origins.size > 1 ? "mixed" : ([...origins][0] ?? "measured");
}

/** What the charts with a limit on the latency axis have in common. */
class LimitChart extends EventTarget {
  /**
   * @param {HTMLElement} element
   * @param {string} name
   * @param {string} metric
   * @param {number | null} limitMs
   * @param {any} options
   */
  constructor(element, name, metric, limitMs, options) {
    super();
    this.metric = metric;
    /** @type {number | null} */
    this.limitMs = limitMs;
    this.options = options;
    this.chart = new VegaView(element, name, {
      wanted: () => this.wanted(),
      tip: (datum) => this.tip(datum),
      limitMetric: () => this.metric,
      isZoomed: true,
      heights: [400, 430],
      later: options.later,
    });
    this.ready = this.chart.ready;
    this.chart.addEventListener("limit", (event) => this.#moved(/** @type {CustomEvent} */ (event).detail));
    this.chart.addEventListener("select", (event) => this.selected(/** @type {CustomEvent} */ (event).detail));
  }

  /**
   * Put the limit elsewhere, or take it away.
   * @param {string} metric
   * @param {number | null} ms
   */
  setLimit(metric, ms) {
    if (metric !== this.metric) return;
    this.limitMs = ms;
    void this.chart.patch({ signals: { limit_ms: ms } });
  }

  remove() {
    this.chart.remove();
  }

  /** @returns {import("./vega_view.mjs").Wanted} */
  wanted() {
    throw new Error("of the chart");
  }

  /** @param {any} datum @returns {Tip | null} */
  tip(datum) {
    return datum && null;
  }

  /** @param {any} datum */
  selected(datum) {
    this.dispatchEvent(new CustomEvent("select", { detail: datum }));
  }

  /** @param {number} ms */
  #moved(ms) {
    this.limitMs = ms;
    void this.chart.patch({ signals: { limit_ms: ms } });
    this.options.onLimit?.(this.metric, ms);
    this.dispatchEvent(new CustomEvent("limit", { detail: { metric: this.metric, ms } }));
  }
}

class FrontChart extends LimitChart {
  /** @param {HTMLElement} element @param {any} figures @param {any} options */
  constructor(element, figures, options) {
    const metric = figures.latency_metric;
    super(element, "front", metric, figures.sla[metric] ?? null, { ...options, later: ["dominated", "greyed"] });
    this.figures = figures;
    this.highlighted = null;
    /** @type {{rows: any, data: {dominated: any[], greyed: any[]}} | null} */
    this.drawnOf = null;
    this.rows = frontRows(figures);
    this.wasLog = { x: this.rows.x.type === "log", y: this.rows.y.type === "log" };
    this.#tell();
  }

  /**
   * Show what is known now: zoom and limit stay.
   * @param {any} figures
   */
  update(figures) {
    this.figures = figures;
    this.rows = frontRows(figures, { wasLog: this.wasLog });
    this.wasLog = { x: this.rows.x.type === "log", y: this.rows.y.type === "log" };
    this.#tell();
    return this.chart.refresh();
  }

  /**
   * Put a ring around a trial's dot, or around none.
   * @param {number | null} trial
   */
  highlight(trial) {
    if (trial === this.highlighted) return;
    this.highlighted = trial;
    void this.chart.patch({ data: { highlight: this.#ringed() } });
  }

  wanted() {
    const { rows } = this;
    const series = rows.series.join() === "one precision" ? [] : rows.series;
    const states = [...new Set(rows.greyed.map((row) => row.state))].sort();
    const legend = [...(series.length ? ["precision"] : []), ...(rows.max_batch ? ["batch"] : []), ...(states.length ? ["states"] : [])];
    return {
      query: { metric: rows.metric, origin: rows.origin, x: rows.x.type, y: rows.y.type, legend },
      data: {
        ...this.#drawn(),
        front: rows.front,
        default: rows.default,
        highlight: this.#ringed(),
      },
      signals: {
        x_domain: [rows.x.low, rows.x.high],
        y_domain: [rows.y.low, rows.y.high],
        series,
        max_batch: rows.max_batch,
        states,
        limit_ms: this.limitMs,
      },
    };
  }

  /** @param {any} datum @returns {Tip | null} */
  tip(datum) {
    const { place } = datum;
    if (place === undefined) return null;
    const { trials, latency_metric: metric } = this.figures;
    const onFront = this.figures.front.find((/** @type {any} */ one) => one.trial === datum.trial);
    const state = trials.state[place];
    const what = datum.label === "default" ? "default configuration" : onFront ? "on the front" : (STATES[state] ?? "beaten");
    const from = onFront ?? {
      tok_per_j: trials.tok_per_j[place],
      tok_per_j_low: trials.tok_per_j_low[place],
      tok_per_j_high: trials.tok_per_j_high[place],
      latency_ms: trials.latencies_ms[metric]?.[place],
      latency_low_ms: trials.latency_low_ms[place],
      latency_high_ms: trials.latency_high_ms[place],
    };
    /** @type {[string, string][]} */
    const lines = [
      ["tokens per joule", figure(from.tok_per_j, "tok/J", from.tok_per_j_low, from.tok_per_j_high)],
      [metricWords(metric), figure(from.latency_ms, "ms", from.latency_low_ms, from.latency_high_ms)],
      ["output", figure(trials.output_tok_s[place], "tok/s")],
      ["power", figure(trials.mean_power_w[place], "W")],
    ];
    if (trials.mean_clock_mhz[place] !== null) lines.push(["mean clock", figure(trials.mean_clock_mhz[place], "MHz")]);
    for (const [name, column] of Object.entries(trials.knobs)) {
      if (column[place] !== null) lines.push([name, knobWords(name, column[place])]);
    }
    if (onFront?.tied_with.length) lines.push(["tied with", onFront.tied_with.map((/** @type {number} */ n) => `#${n}`).join(", ")]);
    const reason = onFront ? null : (trials.detail[place] ?? trials.reason[place]);
    const notes = [reason, ORIGINS[this.rows.origin]].filter(Boolean);
    return { title: `Trial ${datum.trial}: ${what}`, lines, note: notes.join(". ") };
  }

  /** @param {any} datum */
  selected(datum) {
    this.options.onSelect?.(datum.trial);
    super.selected(datum);
  }

  /** Return what is drawn of the dots beside the front: the same arrays as long as the rows are, so that they are set once. */
  #drawn() {
    const { rows } = this;
    if (this.drawnOf?.rows !== rows) {
      const [dominated, greyed] = [rows.dominated, rows.greyed].map((dots) => drawn(dots, rows.x, rows.y));
      this.drawnOf = { rows, data: { dominated, greyed } };
    }
    return this.drawnOf.data;
  }

  /** Return the place of the trial that is pointed at. */
  #ringed() {
    if (this.highlighted === null) return [];
    const { front, dominated, greyed, default: marked } = this.rows;
    const ringed = [...front, ...marked, ...dominated, ...greyed].find((row) => row.trial === this.highlighted);
    return ringed ? [{ x: ringed.x, y: ringed.y }] : [];
  }

  /** Say under the chart what its marks are, and what is not in it. */
  #tell() {
    const { rows, chart } = this;
    const bars = "Bars are 95 % intervals. The line has steps because between two points only the points are claimed.";
    const said = rows.front.length ? [bars] : [];
    if (rows.dominated.length) said.push(`Faint: ${count(rows.dominated.length, "window")} beaten by the front.`);
    if (rows.greyed.length) said.push(`Grey: ${count(rows.greyed.length, "window")} not counted; point at one for the reason.`);
    if (rows.front.some((row) => row.is_tied)) said.push("Ringed: cannot be told apart from another point.");
    const { dominated, greyed } = this.#drawn();
    if (dominated !== rows.dominated || greyed !== rows.greyed) said.push("Dots on top of each other are drawn once.");
    if (rows.num_without_figures) said.push(`${count(rows.num_without_figures, "trial")} without figures not drawn.`);
    chart.note.textContent = said.join(" ");
  }
}

class HypervolumeChart {
  /** @param {HTMLElement} element @param {any} figures */
  constructor(element, figures) {
    this.figures = figures;
    this.chart = new VegaView(element, "hypervolume", {
      wanted: () => this.#wanted(),
      tip: (datum) => this.#tip(datum),
      heights: [220, 240],
    });
    this.ready = this.chart.ready;
  }

  /** @param {any} figures */
  update(figures) {
    this.figures = figures;
    return this.chart.refresh();
  }

  remove() {
    this.chart.remove();
  }

  /** @returns {import("./vega_view.mjs").Wanted} */
  #wanted() {
    const { number, device_s, hypervolume } = this.figures.trials;
    const last = device_s.reduce((/** @type {number} */ most, /** @type {number | null} */ at) => Math.max(most, at ?? 0), 0);
    const [unit, per] = last < 300 ? ["s", 1] : last < 3 * 3600 ? ["min", 60] : ["h", 3600];
    let before = 0;
    const growth = [{ device: 0, hypervolume: 0, has_grown: false, trial: null }];
    number.forEach((/** @type {number} */ trial, /** @type {number} */ i) => {
      if (device_s[i] === null || hypervolume[i] === null) return;
      const has_grown = hypervolume[i] > before;
      before = Math.max(before, hypervolume[i]);
      growth.push({ device: device_s[i] / per, hypervolume: hypervolume[i], has_grown, trial });
    });
    return { query: { unit, origin: originOf(this.figures) }, data: { growth }, signals: {} };
  }

  /** @param {any} datum @returns {Tip | null} */
  #tip(datum) {
    if (datum.trial === null || datum.trial === undefined) return null;
    const { number, device_s } = this.figures.trials;
    const at = device_s[number.indexOf(datum.trial)];
    const tail = originOf(this.figures) === "measured" ? "" : `, ${originOf(this.figures)}`;
    return {
      title: `After trial ${datum.trial}`,
      lines: [
        ["hypervolume", figure(datum.hypervolume, `tok/J × ms${tail}`)],
        ["device time", at < 300 ? figure(at, "s") : figure(at / 60, "min")],
      ],
    };
  }
}

class TraceChart {
  /** @param {HTMLElement} element @param {Trace} trace */
  constructor(element, trace) {
    this.trace = trace;
    this.chart = new VegaView(element, "trace", { wanted: () => this.#wanted(), tip: (datum) => this.#tip(datum) });
    this.ready = this.chart.ready;
  }

  /** @param {Trace} trace */
  update(trace) {
    this.trace = trace;
    return this.chart.refresh();
  }

  remove() {
    this.chart.remove();
  }

  /** @returns {import("./vega_view.mjs").Wanted} */
  #wanted() {
    const { time_s, power_w, clock_mhz } = this.trace;
    const hasClock = clock_mhz?.some((one) => one !== null) ?? false;
    const samples = time_s.map((at, i) => ({ time_s: at, power_w: power_w[i], clock_mhz: clock_mhz?.[i] ?? null }));
    return { query: { has_clock: `${hasClock}`, origin: originOf(this.trace) }, data: { samples }, signals: {} };
  }

  /** @param {any} datum @returns {Tip | null} */
  #tip(datum) {
    const tail = originOf(this.trace) === "measured" ? "" : `, ${originOf(this.trace)}`;
    /** @type {[string, string][]} */
    const lines = [["power", figure(datum.power_w, `W${tail}`)]];
    if (datum.clock_mhz !== null) lines.push(["clock", figure(datum.clock_mhz, "MHz")]);
    return { title: `At ${figure(datum.time_s, "s")}`, lines };
  }
}

class ComparisonChart extends LimitChart {
  /** @param {HTMLElement} element @param {Comparison} comparison @param {any} options */
  constructor(element, comparison, options) {
    super(element, "comparison", comparison.metric, comparison.limit_ms, options);
    this.comparison = comparison;
    this.chart.note.textContent = "Each front is a line of steps with a dash of its own; the letters stand in the table.";
  }

  /** @param {Comparison} comparison */
  update(comparison) {
    this.comparison = comparison;
    return this.chart.refresh();
  }

  wanted() {
    const { comparison } = this;
    const rows = comparison.fronts.flatMap((front) => {
      const drawn = front.points.filter((point) => point.latency_ms > 0 && point.tok_per_j > 0);
      return drawn.map((point, i) => ({
        x: point.latency_ms,
        y: point.tok_per_j,
        letter: front.letter,
        job: front.job,
        trial: point.trial,
        place: i,
        is_leading: point.is_leading,
        is_last: i === drawn.length - 1,
      }));
    });
    const x = spanOf(rows.map((row) => row.x), { limit: comparison.limit_ms });
    const y = spanOf(rows.map((row) => row.y));
    return {
      query: { metric: comparison.metric, origin: originOfAll(comparison.fronts), x: x.type, y: y.type },
      data: { fronts: rows },
      signals: {
        x_domain: [x.low, x.high],
        y_domain: [y.low, y.high],
        letters: comparison.fronts.map((front) => front.letter),
        limit_ms: this.limitMs,
      },
    };
  }

  /** @param {any} datum @returns {Tip | null} */
  tip(datum) {
    const front = this.comparison.fronts.find((one) => one.letter === datum.letter);
    const point = front?.points.find((one) => one.trial === datum.trial);
    if (!front || !point) return null;
    /** @type {[string, string][]} */
    const lines = [
      ["tokens per joule", figure(point.tok_per_j, "tok/J", point.tok_per_j_low, point.tok_per_j_high)],
      [metricWords(this.metric), figure(point.latency_ms, "ms")],
      ["output", figure(point.output_tok_s, "tok/s")],
      ["power", figure(point.mean_power_w, "W")],
    ];
    for (const [name, value] of Object.entries(point.knobs)) lines.push([name, knobWords(name, value)]);
    return { title: `${front.letter}: ${front.title}, trial ${point.trial}`, lines, note: ORIGINS[originOf(front)] };
  }

  /** @param {any} datum */
  selected(datum) {
    this.options.onSelect?.(datum.job, datum.trial);
    super.selected(datum);
  }
}

/**
 * Return a figure with unit and interval; a dash for none, a question mark for a bound that is not known.
 * @param {number | null | undefined} value
 * @param {string} unit
 * @param {number | null} [low]
 * @param {number | null} [high]
 */
export function figure(value, unit, low = null, high = null) {
  if (value === null || value === undefined) return "–";
  const bounds = interval(low, high);
  return `${number(value)} ${unit}${bounds ? ` (${bounds})` : ""}`;
}

/** @param {number} many @param {string} what */
function count(many, what) {
  return `${many.toLocaleString("en")} ${what}${many === 1 ? "" : "s"}`;
}

/** @param {string} name @param {any} value */
function knobWords(name, value) {
  const unit = UNITS.find(([end]) => name.endsWith(end))?.[1];
  return unit ? `${value} ${unit}` : `${value}`;
}
