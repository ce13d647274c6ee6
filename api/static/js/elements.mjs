// @ts-check
/** Elements made of texts: whatever a text holds, it is shown as text. */

/**
 * @param {string} tag
 * @param {Record<string, string | number | boolean | null | undefined>} [attributes] null and false leave one out
 * @param {...(Node | string | null)} children
 * @returns {HTMLElement}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/**
 * A list of facts: pairs of a name and what is told; pairs of nothing are left out.
 * @param {[string, Node | string | null][]} pairs
 */
export function facts(pairs) {
  const list = element("dl", { class: "facts" });
  for (const [name, told] of pairs) {
    if (told !== null) list.append(element("dt", {}, name), element("dd", {}, told));
  }
  return list;
}

/**
 * A point's knobs.
 * @param {Record<string, number | string | null>} values
 */
export function knobs(values) {
  const all = element("span");
  for (const [name, value] of Object.entries(values)) {
    if (value !== null) all.append(element("span", { class: "knob" }, `${name} `, element("b", {}, String(value))), " ");
  }
  return all;
}

/**
 * A number with its unit and interval.
 * @param {string} value
 * @param {string} unit
 * @param {string} [interval]
 */
export function figure(value, unit, interval = "") {
  return element(
    "span",
    {},
    value,
    value === "–" || !unit ? null : "\u00a0",
    value === "–" || !unit ? null : element("span", { class: "unit" }, unit),
    interval ? " " : null,
    interval ? element("span", { class: "interval", title: "95 % interval" }, interval) : null,
  );
}

/** @param {string} id */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}
