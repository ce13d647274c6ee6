// @ts-check
/** The limits of a form: rows of a figure and a bound in milliseconds, to be added and removed. */

import { choose, numberOr } from "./form_fields.mjs";

/** Figures that a new row begins with, the first that no row has yet. */
const FIRST = ["ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms"];
let numRows = 0;

export class SlaFields {
  /**
   * @param {Document | Element} root
   * @param {() => void} onChange
   */
  constructor(root, onChange) {
    this.list = /** @type {HTMLElement} */ (root.querySelector("#sla-rows"));
    this.template = /** @type {HTMLTemplateElement} */ (root.querySelector("#sla-row"));
    this.none = /** @type {HTMLElement} */ (root.querySelector("#no-sla"));
    this.button = /** @type {HTMLButtonElement} */ (root.querySelector("#add-sla"));
    this.onChange = onChange;
    this.button.addEventListener("click", () => {
      const taken = this.rows().map((row) => row.metric.value);
      this.add(FIRST.find((metric) => !taken.includes(metric)) ?? FIRST[0], "").bound.focus();
      this.onChange();
    });
  }

  /** @param {Record<string, number>} limits */
  write(limits) {
    this.list.replaceChildren();
    for (const [metric, bound] of Object.entries(limits)) this.add(metric, String(bound));
    this.tell();
  }

  /**
   * The limits; a bound that is missing is an empty text, which the server complains of. Of two rows for one figure it
   * cannot be known which is meant: that is told beside the second.
   * @returns {{limits: Record<string, number | string>, faults: import("./rest.mjs").Fault[]}}
   */
  read() {
    /** @type {Record<string, number | string>} */
    const limits = {};
    const faults = [];
    for (const { metric, bound, place } of this.rows()) {
      const words = metric.selectedOptions[0]?.textContent ?? metric.value;
      place.dataset.fault = `sla.${metric.value}`;
      bound.setAttribute("aria-label", `Highest ${words} in milliseconds`);
      if (metric.value in limits) {
        place.dataset.fault = `sla.${metric.value} again`;
        faults.push({ field: `sla.${metric.value} again`, detail: `${words} has a limit already; keep one of the two` });
        continue;
      }
      limits[metric.value] = numberOr(bound.value);
    }
    return { limits, faults };
  }

  rows() {
    return [...this.list.children].map((row) => ({
      metric: /** @type {HTMLSelectElement} */ (row.querySelector("select")),
      bound: /** @type {HTMLInputElement} */ (row.querySelector("input")),
      place: /** @type {HTMLElement} */ (row.querySelector(".error")),
    }));
  }

  /**
   * @param {string} metric
   * @param {string} bound
   */
  add(metric, bound) {
    this.list.append(this.template.content.cloneNode(true));
    const row = /** @type {HTMLElement} */ (this.list.lastElementChild);
    const found = this.rows()[this.list.children.length - 1];
    numRows += 1;
    found.place.id = `e-sla-${numRows}`;
    row.setAttribute("aria-label", "Latency limit");
    choose(found.metric, metric);
    found.bound.value = bound;
    for (const control of [found.metric, found.bound]) control.setAttribute("aria-describedby", found.place.id);
    row.querySelector("[data-remove]")?.addEventListener("click", () => {
      const next = row.nextElementSibling ?? row.previousElementSibling;
      row.remove();
      (next?.querySelector("input") ?? this.button).focus();
      this.tell();
      this.onChange();
    });
    this.tell();
    return found;
  }

  tell() {
    this.none.hidden = this.list.children.length > 0;
  }
}
