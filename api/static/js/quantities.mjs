// @ts-check
/** Counts, durations and energy as people read them. */

/** @param {number} number */
export function count(number) {
  return number.toLocaleString("en-US");
}

/** @param {number} seconds */
export function lasting(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {number} joules */
export function energy(joules) {
  const scales = /** @type {[number, string][]} */ ([[1e9, "GJ"], [1e6, "MJ"], [1e3, "kJ"]]);
  const [scale, unit] = scales.find(([size]) => joules >= size) ?? [1, "J"];
  const kwh = joules >= 3.6e5 ? ` (${Number((joules / 3.6e6).toPrecision(2))} kWh)` : "";
  return `${Number((joules / scale).toPrecision(2))} ${unit}${kwh}`;
}
