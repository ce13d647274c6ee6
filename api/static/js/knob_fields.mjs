// @ts-check
/**
 * The knobs of a form: what model, engine and device together offer, as the server says it, and the reason beside what
 * cannot be had. Words and counts are boxes to tick, numbers a list with commas.
 */

import { numberOr } from "./form_fields.mjs";

/**
 * @typedef {number | string} Value
 * @typedef {{name: string, unit: string, is_settable: boolean, reason: string | null, needs_launch: boolean,
 *   default: Value | null, is_usual: boolean, tried: Value[], lowest: number | null, highest: number | null,
 *   choices: {value: Value, is_possible: boolean, reason: string | null}[]}} Knob
 */

const WORDS = /** @type {Record<string, string>} */ ({
  max_batch: "Requests that run at once",
  precision: "Of weights and arithmetic",
  prefill_chunk: "Prompt tokens a step",
  kv_precision: "Of the KV cache",
  policy: "Which goes first in a step",
  tensor_parallel: "GPUs that share each layer",
  pipeline_parallel: "Stages",
  data_parallel: "Replicas",
  expert_parallel: "Experts over GPUs",
  prefill_gpus: "GPUs for prompts alone",
  sm_clock_cap_mhz: "Highest clock of the GPU",
  power_cap_w: "Power limit of the board",
  cpu_clock_cap_mhz: "Highest clock of the CPU",
});

export class KnobFields {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    /** @type {Knob[]} */
    this.knobs = [];
    this.isSimulated = true;
  }

  /**
   * Show the knobs of another choice; values that somebody chose stay where they are still possible.
   * @param {{knobs: Knob[], is_simulated: boolean}} found
   * @param {Record<string, Value[]> | null} wanted null for the usual ones
   */
  show(found, wanted) {
    this.knobs = found.knobs;
    this.isSimulated = found.is_simulated;
    const usable = found.knobs.filter((knob) => knob.is_settable);
    const barred = found.knobs.filter((knob) => !knob.is_settable);
    const chosen = wanted ?? Object.fromEntries(usable.filter((knob) => knob.is_usual).map((knob) => [knob.name, knob.tried]));
    this.root.replaceChildren(...usable.map((knob) => rowOf(knob, chosen[knob.name] ?? [])));
    if (barred.length) this.root.append(barredList(barred));
  }

  /** Say that nothing is known of this choice. */
  clear() {
    this.knobs = [];
    const words = document.createElement("p");
    words.className = "knobs-wait quiet";
    words.textContent = "Knobs are shown once model and device fit together.";
    this.root.replaceChildren(words);
  }

  /**
   * What is chosen, by knob.
   * @returns {Record<string, Value[]>}
   */
  chosen() {
    /** @type {Record<string, Value[]>} */
    const found = {};
    for (const knob of this.knobs.filter((one) => one.is_settable)) {
      const values = valuesOf(this.root, knob);
      if (values.length) found[knob.name] = values;
    }
    return found;
  }

  /**
   * What the job says of its knobs; nothing where a real device's are as usual: then its worker adds what it can set.
   * @returns {Record<string, Value[]>}
   */
  read() {
    const chosen = this.chosen();
    return !this.isSimulated && this.isUsual(chosen) ? {} : chosen;
  }

  /** @param {Record<string, Value[]>} chosen */
  isUsual(chosen) {
    return this.knobs.every((knob) => {
      const usual = knob.is_settable && knob.is_usual ? knob.tried : [];
      return JSON.stringify(chosen[knob.name] ?? []) === JSON.stringify(usual);
    });
  }
}

/**
 * @param {ParentNode} root
 * @param {Knob} knob
 * @returns {Value[]}
 */
function valuesOf(root, knob) {
  const list = /** @type {HTMLInputElement | null} */ (root.querySelector(`#k-${knob.name}`));
  if (list) return list.value.split(",").map((part) => part.trim()).filter(Boolean).map(numberOr);
  return knob.choices
    .filter((_, i) => /** @type {HTMLInputElement} */ (root.querySelector(`#k-${knob.name}-${i}`))?.checked)
    .map((choice) => choice.value);
}

/**
 * @param {Knob} knob
 * @param {Value[]} chosen
 */
function rowOf(knob, chosen) {
  const row = element("fieldset", { className: "knob-row" });
  const legend = element("legend");
  legend.append(element("code", { textContent: knob.name }));
  if (knob.unit) legend.append(" ", element("span", { className: "unit", textContent: knob.unit }));
  const values = knob.choices.length ? boxes(knob, chosen) : line(knob, chosen);
  const notes = element("div", { className: "knob-notes" });
  const hint = element("p", { className: "hint", id: `h-knobs.${knob.name}`, textContent: hintOf(knob) });
  const fault = element("p", { className: "error", id: `e-knobs.${knob.name}`, hidden: true });
  fault.dataset.fault = `knobs.${knob.name}`;
  notes.append(hint, ...impossible(knob), fault);
  row.append(legend, values, notes);
  return row;
}

/** @param {Knob} knob */
function hintOf(knob) {
  const parts = [WORDS[knob.name] ?? ""];
  if (knob.lowest !== null && knob.highest !== null) parts.push(`${knob.lowest} to ${knob.highest} ${knob.unit}`);
  if (knob.default !== null) parts.push(`default ${knob.default}`);
  if (knob.needs_launch) parts.push("each value takes a launch");
  if (knob.reason) parts.push(knob.reason);
  return `${parts.filter(Boolean).join(", ")}.`;
}

/** @param {Knob} knob */
function impossible(knob) {
  /** @type {Map<string, Value[]>} */
  const byReason = new Map();
  for (const { value, is_possible: isPossible, reason } of knob.choices) {
    if (!isPossible) byReason.set(reason ?? "", [...(byReason.get(reason ?? "") ?? []), value]);
  }
  return [...byReason].map(([reason, values]) => {
    const isNamed = values.length === 1 && reason.includes(`'${values[0]}'`);
    return element("p", { className: "hint", textContent: isNamed ? `${reason}.` : `${values.join(", ")}: ${reason}.` });
  });
}

/**
 * @param {Knob} knob
 * @param {Value[]} chosen
 */
function line(knob, chosen) {
  const input = element("input", { id: `k-${knob.name}`, type: "text", value: chosen.join(", "), maxLength: 4000, autocomplete: "off" });
  input.placeholder = knob.default === null ? "not searched" : `not searched: ${knob.default}`;
  input.setAttribute("aria-label", `Values of ${knob.name}, with commas`);
  input.setAttribute("aria-describedby", `h-knobs.${knob.name} e-knobs.${knob.name}`);
  return input;
}

/**
 * @param {Knob} knob
 * @param {Value[]} chosen
 */
function boxes(knob, chosen) {
  const choices = [...knob.choices];
  for (const value of chosen.filter((one) => !choices.some((choice) => choice.value === one))) {
    choices.push({ value, is_possible: true, reason: null }); // of the job that is copied
  }
  knob.choices = choices;
  const group = element("div", { className: "choices" });
  choices.forEach((choice, i) => {
    const label = element("label", { className: "choice" });
    const box = element("input", { type: "checkbox", id: `k-${knob.name}-${i}`, disabled: !choice.is_possible });
    box.checked = choice.is_possible && chosen.includes(choice.value);
    box.setAttribute("aria-describedby", `h-knobs.${knob.name} e-knobs.${knob.name}`);
    label.append(box, String(choice.value));
    group.append(label);
  });
  return group;
}

/** @param {Knob[]} knobs */
function barredList(knobs) {
  const section = element("div", { className: "knob-barred" });
  section.append(element("p", { className: "label", textContent: "Cannot be searched here" }));
  const list = element("ul", { className: "able" });
  for (const reason of new Set(knobs.map((knob) => knob.reason ?? ""))) {
    const names = knobs.filter((knob) => (knob.reason ?? "") === reason).map((knob) => knob.name);
    const item = element("li", { className: "cannot" });
    item.append(element("span", { className: "unseen", textContent: "not available: " }), element("code", { textContent: names.join(", ") }));
    item.append(element("span", { className: "quiet", textContent: `: ${reason}.` }));
    list.append(item);
  }
  section.append(list);
  return section;
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Partial<HTMLElementTagNameMap[Tag]>} [properties]
 * @returns {HTMLElementTagNameMap[Tag]}
 */
function element(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}
