// @ts-check
/**
 * The fields of a job in a form: plain ones, limits, and knobs, which change with model, engine and device. Whoever uses it
 * is told of changes, and asks for the job as it stands.
 */

import { choose, controls, put, readFields, writeFields } from "./form_fields.mjs";
import { KnobFields } from "./knob_fields.mjs";
import { ask } from "./rest.mjs";
import { SlaFields } from "./sla_fields.mjs";

const SIMULATED = /^simulated:([^:@]+)(?::(\d+))?$/;
/** Which fields of the workload a scenario has. */
const PARTS = /** @type {Record<string, string[]>} */ ({
  closed: ["prompt_tokens", "output_tokens", "concurrency", "trace_file"],
  offline: ["prompt_tokens", "output_tokens", "trace_file"],
  server: ["prompt_tokens", "output_tokens", "rate_per_s", "trace_file"],
  interactive: ["prompt_tokens", "output_tokens", "rate_per_s", "trace_file"],
  trace: ["trace_file", "time_scale"],
});
const OF_SOME = ["prompt_tokens", "output_tokens", "concurrency", "rate_per_s", "trace_file", "time_scale"];

export class JobForm {
  /**
   * @param {HTMLElement} form the form, or the part of it that has the job
   * @param {Record<string, any>} start the job's fields that it begins with
   * @param {() => void} onChange
   */
  constructor(form, start, onChange) {
    this.form = form;
    this.onChange = onChange;
    this.knobs = new KnobFields(this.part("knobs"));
    this.sla = new SlaFields(form, onChange);
    this.asked = "";
    /** @type {import("./rest.mjs").Fault[]} */
    this.faults = [];
    writeFields(form, start);
    /** What no control says, as of a job file that is copied: it goes along, and the form tells of it. */
    this.carried = uncontrolled(form, start);
    this.tellCarried();
    this.ready = Promise.resolve();
    this.setDevice(start.device ?? "");
    this.sla.write(start.sla ?? {});
    /** @type {Record<string, (number | string)[]> | null} */
    this.wanted = start.knobs ?? null;
    form.addEventListener("input", () => this.change());
    form.addEventListener("change", () => this.change());
  }

  /** Ask for the knobs that fit, and tell of it. */
  begin() {
    this.adapt();
    this.ready = this.askKnobs().then(this.onChange);
    return this.ready;
  }

  /**
   * @param {string} id
   * @returns {HTMLElement}
   */
  part(id) {
    return /** @type {HTMLElement} */ (this.form.querySelector(`#${CSS.escape(id)}`));
  }

  /**
   * @param {string} name
   * @returns {HTMLInputElement | HTMLSelectElement}
   */
  control(name) {
    return /** @type {HTMLInputElement | HTMLSelectElement} */ (this.part(`f-${name}`));
  }

  /** The job as the form says it; what cannot be said in a job is in `faults`. */
  read() {
    const fields = readFields(this.form);
    const { limits, faults } = this.sla.read();
    const knobs = this.knobs.knobs.length ? this.knobs.read() : this.wanted ?? {};
    this.faults = faults;
    fields.device = this.device();
    if (Object.keys(limits).length) fields.sla = limits;
    if (Object.keys(knobs).length) fields.knobs = knobs;
    for (const [path, value] of this.carried) put(fields, path, value);
    return ordered(fields);
  }

  tellCarried() {
    const words = this.carried.map(([path, value]) => `${path.join(".")} ${JSON.stringify(value)}`);
    this.part("carried").hidden = words.length === 0;
    this.part("carried").textContent = words.length ? `Goes along as it is, as this form has no field for it: ${words.join(", ")}.` : "";
  }

  device() {
    const base = this.control("device").value;
    const gpus = /** @type {HTMLInputElement} */ (this.part("f-gpus")).value.trim();
    return gpus && this.isSimulated() ? `${base}:${gpus}` : base;
  }

  isSimulated() {
    return this.control("device").value.startsWith("simulated:");
  }

  /** @param {string} device */
  setDevice(device) {
    const match = SIMULATED.exec(device);
    if (device) choose(this.control("device"), match ? `simulated:${match[1]}` : device);
    /** @type {HTMLInputElement} */ (this.part("f-gpus")).value = match?.[2] ?? "";
  }

  change() {
    this.adapt();
    this.ready = this.askKnobs();
    this.onChange();
  }

  /** Show what fits the choices that were made. */
  adapt() {
    const isSimulated = this.isSimulated();
    this.field("gpus").hidden = !isSimulated;
    this.field("allow_device_control").hidden = isSimulated;
    const scenario = this.control("workload.scenario").value;
    for (const name of OF_SOME) this.field(`workload.${name}`).hidden = !PARTS[scenario]?.includes(name);
    const engines = /** @type {HTMLSelectElement} */ (this.control("engine"));
    for (const option of engines.options) {
      option.disabled = option.value !== "" && (option.value === "simulated") !== isSimulated;
    }
    if (engines.selectedOptions[0]?.disabled) engines.value = "";
    this.part("h-engine").textContent = isSimulated
      ? "A simulated device computes nothing, so it takes the simulated engine alone."
      : "The simulated engine is for simulated devices.";
  }

  /** @param {string} name */
  field(name) {
    return /** @type {HTMLElement} */ (this.form.querySelector(`[data-for="${CSS.escape(name)}"]`));
  }

  /** Ask which knobs there are, where model, engine, device or permission are others than before. */
  async askKnobs() {
    const asked = new URLSearchParams({ model: this.control("model").value, device: this.device() });
    const engine = this.control("engine").value;
    if (engine) asked.set("engine", engine);
    if (/** @type {HTMLInputElement} */ (this.control("allow_device_control")).checked) asked.set("allow_device_control", "true");
    if (asked.toString() === this.asked) return;
    const kept = this.knobs.knobs.length ? this.knobs.chosen() : null;
    const isUsual = kept === null || this.knobs.isUsual(kept);
    this.asked = asked.toString();
    const answer = await ask("GET", `/v1/knobs?${asked}`);
    if (asked.toString() !== this.asked) return; // another choice was made meanwhile
    if (!answer.ok) {
      if (kept !== null && !isUsual) this.wanted = kept;
      this.knobs.clear();
      return;
    }
    this.knobs.show(answer.data, this.wanted ?? (isUsual ? null : kept));
    this.wanted = null;
    this.adaptTo(answer.data);
    this.onChange();
  }

  /** @param {{scenarios: string[], quality_reason: string | null, control_reason: string | null}} found */
  adaptTo(found) {
    for (const option of /** @type {HTMLSelectElement} */ (this.control("workload.scenario")).options) {
      option.disabled = !found.scenarios.includes(option.value);
    }
    const quality = /** @type {HTMLFieldSetElement} */ (this.part("quality"));
    const reason = this.part("quality-reason");
    quality.disabled = found.quality_reason !== null;
    reason.hidden = found.quality_reason === null;
    reason.textContent = found.quality_reason === null ? "" : `Not on this device: ${found.quality_reason}.`;
    const control = /** @type {HTMLInputElement} */ (this.control("allow_device_control"));
    control.disabled = found.control_reason !== null;
    if (control.disabled) control.checked = false;
    this.part("h-allow_device_control").textContent = found.control_reason
      ? `Not here: ${found.control_reason}.`
      : "The operator of the machine must allow it too.";
  }
}

/**
 * The fields of a job that no control of a form stands for, with their paths.
 * @param {ParentNode} form
 * @param {Record<string, any>} start
 * @returns {[string[], any][]}
 */
function uncontrolled(form, start) {
  const known = new Set(["device", "sla", "knobs", ...controls(form).map((control) => control.name)]);
  const blocks = Object.entries(start).filter(([name]) => !known.has(name));
  return blocks.flatMap(([name, value]) => {
    if (value === null || typeof value !== "object" || Array.isArray(value)) return [[[name], value]];
    return Object.entries(value).filter(([inner]) => !known.has(`${name}.${inner}`)).map(([inner, one]) => [[name, inner], one]);
  });
}

/**
 * A job's fields in the order in which people read them.
 * @param {Record<string, any>} fields
 */
function ordered(fields) {
  const order = ["name", "model", "engine", "device", "allow_device_control", "workload", "sla", "latency_metric", "knobs", "budget", "repeats"];
  const rest = Object.keys(fields).filter((name) => !order.includes(name));
  return Object.fromEntries([...order, ...rest].filter((name) => name in fields).map((name) => [name, fields[name]]));
}
