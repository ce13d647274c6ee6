// @ts-check
/** Figures as text, as the macros of api/templates/macros.html write them. */

const NONE = "–";

/**
 * Three significant digits, whole numbers from 1000 on; a dash for none.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (Math.abs(value) >= 1000) return value.toFixed(0);
  return String(Number(value.toPrecision(digits)));
}

/**
 * The bounds of an interval; ? for one that the data cannot give.
 * @param {number | null | undefined} low
 * @param {number | null | undefined} high
 */
export function interval(low, high) {
  if (low == null && high == null) return "";
  return `${low == null ? "?" : number(low)} to ${high == null ? "?" : number(high)}`;
}

/** @param {number | null | undefined} ratio */
export function times(ratio) {
  return ratio == null ? NONE : `${ratio.toFixed(2)}×`;
}

/**
 * A latency metric for people, as `TPOT p99`.
 * @param {string} metric
 */
export function metricWords(metric) {
  const [latency, statistic] = metric.split("_");
  return `${latency === "e2e" ? "end to end" : latency.toUpperCase()} ${statistic}`;
}

/**
 * A length of time, as `41 s`, `12 min`, `3.4 h`.
 * @param {number | null | undefined} seconds
 */
export function lasting(seconds) {
  if (seconds == null) return NONE;
  if (seconds < 100) return `${number(seconds, 2)} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${number(seconds / 3600, 2)} h`;
}
