// @ts-check
/**
 * The plain fields of a form as the fields of a body, by their dotted names, and what is wrong with them beside each.
 * A field that is as usual, or empty, is left out. What a value may be is the server's to say: what is no number is sent
 * as it was typed.
 */

/** @typedef {import("./rest.mjs").Fault} Fault */
/** @typedef {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} Control */

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const WHOLE = /^\d+$/;

/**
 * A text as the number that it is, else as it is.
 * @param {string} text
 * @returns {number | string}
 */
export function numberOr(text) {
  const trimmed = text.trim();
  return NUMBER.test(trimmed) ? Number(trimmed) : trimmed;
}

/**
 * Every control of a form that stands for one field.
 * @param {ParentNode} form
 * @returns {Control[]}
 */
export function controls(form) {
  return /** @type {Control[]} */ ([...form.querySelectorAll("[name][data-kind]")]);
}

/**
 * What a control says; undefined where it says what is usual, or nothing.
 * @param {Control} control
 */
function valueOf(control) {
  if (control instanceof HTMLInputElement && control.type === "checkbox") return control.checked || undefined;
  const text = control.value.trim();
  if (control.matches(":disabled") || isHidden(control)) return undefined;
  if (!text || (text === control.dataset.usual && !("always" in control.dataset))) return undefined;
  if (control.dataset.kind === "number") return numberOr(text);
  if (control.dataset.kind === "range") return WHOLE.test(text) ? Number(text) : text.replaceAll(/\s+/g, "");
  return text;
}

/** @param {Control} control */
function isHidden(control) {
  return control.closest("[hidden]") !== null;
}

/**
 * The body's fields that a form's plain controls say.
 * @param {ParentNode} form
 * @returns {Record<string, any>}
 */
export function readFields(form) {
  /** @type {Record<string, any>} */
  const fields = {};
  for (const control of controls(form)) {
    const value = valueOf(control);
    if (value === undefined) continue;
    put(fields, control.name.split("."), value);
  }
  return fields;
}

/**
 * Set a field by its path.
 * @param {Record<string, any>} fields
 * @param {string[]} path
 * @param {any} value
 */
export function put(fields, path, value) {
  let block = fields;
  for (const part of path.slice(0, -1)) block = block[part] ??= {};
  block[path[path.length - 1]] = value;
}

/**
 * Let a form's controls say what a body's fields say; those that it does not name stay as usual.
 * @param {ParentNode} form
 * @param {Record<string, any>} fields
 */
export function writeFields(form, fields) {
  for (const control of controls(form)) {
    const value = control.name.split(".").reduce((block, part) => block?.[part], /** @type {any} */ (fields));
    if (value === undefined || value === null) continue;
    if (control instanceof HTMLInputElement && control.type === "checkbox") control.checked = Boolean(value);
    else choose(control, String(value));
  }
}

/**
 * Set a control; a select gets an option for a value that it does not have.
 * @param {Control} control
 * @param {string} value
 */
export function choose(control, value) {
  if (control instanceof HTMLSelectElement && ![...control.options].some((option) => option.value === value)) {
    control.add(new Option(value, value));
  }
  control.value = value;
}

/**
 * Show what is wrong beside each field, and return what has no field of its own.
 * @param {ParentNode} form
 * @param {Fault[]} faults
 * @returns {string[]}
 */
export function showFaults(form, faults) {
  clearFaults(form);
  const left = [];
  for (const fault of faults) {
    const place = placeOf(form, fault.field);
    if (place === null || place.textContent) {
      if (place === null) left.push(fault.detail);
      continue;
    }
    place.textContent = fault.detail;
    place.hidden = false;
    place.closest("details")?.setAttribute("open", "");
    for (const control of controlsOf(form, place)) control.setAttribute("aria-invalid", "true");
  }
  return left;
}

/** @param {ParentNode} form */
export function clearFaults(form) {
  for (const place of form.querySelectorAll("[data-fault]")) {
    place.textContent = "";
    /** @type {HTMLElement} */ (place).hidden = true;
  }
  for (const control of form.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
}

/**
 * Go to the first control that is wrong, in the order of the page; false where there is none.
 * @param {ParentNode} form
 */
export function focusFirstFault(form) {
  const first = form.querySelector("[aria-invalid]");
  if (!(first instanceof HTMLElement)) return false;
  first.focus();
  return true;
}

/**
 * Where a complaint about a field belongs: beside it, else beside the block that it is in.
 * @param {ParentNode} form
 * @param {string} field
 * @returns {HTMLElement | null}
 */
function placeOf(form, field) {
  const places = /** @type {HTMLElement[]} */ ([...form.querySelectorAll("[data-fault]")]);
  for (let name = field.split("'")[0]; name; name = name.slice(0, Math.max(0, name.lastIndexOf(".")))) {
    const place = places.find((one) => one.dataset.fault === name && !one.parentElement?.closest("[hidden]"));
    if (place) return place;
  }
  return null;
}

/**
 * The controls that a place for complaints describes.
 * @param {ParentNode} form
 * @param {HTMLElement} place
 */
function controlsOf(form, place) {
  return [...form.querySelectorAll(`[aria-describedby~="${CSS.escape(place.id)}"]`)];
}
