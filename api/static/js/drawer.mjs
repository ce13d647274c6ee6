// @ts-check
/** A trial in a drawer at the side: all its knobs and figures, why it is not used, where its energy comes from, its trace. */

import { byId, element, facts, figure, knobs } from "./elements.mjs";
import { problemOf } from "./figures.mjs";
import { interval, lasting, metricWords, number } from "./numbers.mjs";

/** @typedef {{value: number, low: number | null, high: number | null}} Estimate */

const LATENCIES = ["ttft", "tpot", "itl", "e2e"];
const STATISTICS = ["p50", "p90", "p95", "p99", "mean"];

export class Drawer {
  /**
   * @param {string} job
   * @param {(element: HTMLElement, trace: any) => any} drawTrace
   */
  constructor(job, drawTrace) {
    this.job = job;
    this.drawTrace = drawTrace;
    this.dialog = /** @type {HTMLDialogElement} */ (byId("drawer"));
    this.asked = "";
    /** @type {any} */
    this.chart = null;
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("close", () => this.forget());
  }

  /**
   * Show a trial.
   * @param {number} trial
   * @param {number | null} [attempt] null for the last
   */
  async open(trial, attempt = null) {
    const query = attempt === null ? "" : `?attempt=${attempt}`;
    const url = `/v1/jobs/${encodeURIComponent(this.job)}/trials/${trial}${query}`;
    this.asked = url;
    this.fill(trial, [element("p", { class: "skeleton" }, "Loading"), element("p", { class: "skeleton" }, "Loading")]);
    if (!this.dialog.open) this.dialog.showModal();
    try {
      const answer = await fetch(url);
      if (!answer.ok) throw new Error(await problemOf(answer));
      const detail = await answer.json();
      if (this.asked === url) this.show(detail, url);
    } catch (error) {
      if (this.asked === url) this.fill(trial, this.failed(trial, attempt, error));
    }
  }

  /**
   * @param {number} trial
   * @param {number | null} attempt
   * @param {unknown} error
   */
  failed(trial, attempt, error) {
    const again = element("button", { type: "button" }, "Try again");
    again.addEventListener("click", () => void this.open(trial, attempt));
    const words = error instanceof TypeError ? "The server does not answer." : String(error instanceof Error ? error.message : error);
    return [element("div", { class: "notice bad" }, element("p", {}, words), again)];
  }

  forget() {
    this.asked = "";
    this.chart?.remove?.();
    this.chart = null;
  }

  /**
   * @param {number} trial
   * @param {Node[]} content
   * @param {Node[]} [beside] what stands beside the title
   */
  fill(trial, content, beside = []) {
    this.chart?.remove?.();
    this.chart = null;
    const close = element("button", { type: "button", class: "small", "aria-label": "Close" }, "Close");
    close.addEventListener("click", () => this.dialog.close());
    const title = element("h2", { id: "drawer-title" }, `Trial ${trial}`);
    const head = element("div", { class: "drawer-head" }, element("div", { class: "row" }, title, ...beside), close);
    this.dialog.replaceChildren(head, element("div", { class: "drawer-body" }, ...content));
    close.focus();
  }

  /**
   * @param {any} detail
   * @param {string} url
   */
  show(detail, url) {
    const measured = detail.measurement;
    const trace = element("div", { class: "chart trace", role: "group", "aria-label": "Power over the window" });
    const content = [
      ...(measured?.energy.is_estimate ? [estimateNotice(measured.energy.method)] : []),
      ...(detail.reason || detail.detail ? [reasonNotice(detail)] : []),
      section("Settings", knobs(detail.knobs)),
      ...(measured ? figuresOf(measured) : [element("p", { class: "quiet" }, nothingWords(detail.state))]),
      ...(detail.trace ? [section("Power over the window", trace)] : []),
      ...(measured ? [...conditionsOf(measured), energyOf(measured), ...qualityOf(measured)] : []),
      section("How it ran", runFacts(detail)),
      element("p", { class: "small" }, element("a", { href: url }, "The same as data")),
    ];
    this.fill(detail.number, content, [element("span", { class: `state badge ${detail.state}` }, detail.state)]);
    if (!detail.trace || !measured) return;
    const { is_estimate, method } = measured.energy;
    this.chart = this.drawTrace(trace, { ...detail.trace, is_estimate, is_simulated: method === "simulated" });
  }
}

/**
 * @param {string} title
 * @param {...Node} content
 */
function section(title, ...content) {
  return element("section", {}, element("h3", {}, title), ...content);
}

/** @param {string} method */
function estimateNotice(method) {
  const words = method === "simulated" ? "Simulated, nothing was measured." : "Estimate, energy was not measured.";
  return element("p", { class: "notice estimate" }, element("b", {}, words));
}

/** @param {any} detail */
function reasonNotice(detail) {
  const kind = detail.state === "failed" || detail.state === "invalid" ? " bad" : " warn";
  return element(
    "div",
    { class: `notice${kind}` },
    element("p", {}, detail.detail ?? detail.reason),
    detail.detail && detail.reason ? element("p", { class: "small mono" }, detail.reason) : null,
  );
}

/** @param {string} state */
function nothingWords(state) {
  if (state === "running") return "It runs now; its figures come when it ends.";
  if (state === "complete") return "Its measurement was removed with what was old; the point itself is kept.";
  return "Nothing was measured.";
}

/** @param {any} measured */
function figuresOf(measured) {
  const { tok_per_j, output_tok_s, j_per_tok } = measured;
  const told = facts([
    ["Tokens per joule", estimate(tok_per_j, "tok/J")],
    ["Energy per token", estimate(j_per_tok, "J")],
    ["Throughput", estimate(output_tok_s, "tok/s")],
    ["Mean power", figure(number(measured.mean_power_w), "W")],
    ["Window", figure(number(measured.window_s), "s", "")],
    ["Requests", `${measured.num_finished} finished, ${measured.num_failed} failed`],
    ["At once", figure(number(measured.mean_running), "requests running")],
    ["Ended early by", measured.cut_by],
  ]);
  return [section("Figures", told), section("Latency, ms", latencyTable(measured))];
}

/**
 * @param {Estimate | null} one
 * @param {string} unit
 */
function estimate(one, unit) {
  return one ? figure(number(one.value, 4), unit, interval(one.low, one.high)) : "–";
}

/** @param {any} measured */
function latencyTable(measured) {
  const head = element("tr", {}, element("th", { scope: "col" }, element("span", { class: "unseen" }, "Statistic")), ...LATENCIES.map((name) => heading(name)));
  const rows = STATISTICS.map((statistic) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, statistic),
      ...LATENCIES.map((name) => {
        const one = measured[`${name}_ms`][statistic];
        return element("td", { class: "n", title: one ? `95 %: ${interval(one.low, one.high)}` : null }, number(one?.value, 4));
      }),
    ),
  );
  return element("table", { class: "dense" }, element("thead", {}, head), element("tbody", {}, ...rows));
}

/** @param {string} name */
function heading(name) {
  return element("th", { scope: "col", class: "n" }, metricWords(`${name}_ _ms`).trim());
}

/** @param {any} measured */
function conditionsOf(measured) {
  const { conditions } = measured.energy;
  if (!conditions.length) return [];
  return [
    section(
      "Clocks and temperature",
      ...conditions.map((/** @type {any} */ one) =>
        facts([
          ["Device", conditions.length > 1 ? one.device_uuid : null],
          ["Clock", one.mean_clock_mhz === null ? null : figure(number(one.mean_clock_mhz), "MHz", spread(one.lowest_clock_mhz, one.highest_clock_mhz))],
          ["Memory clock", one.mean_memory_clock_mhz === null ? null : figure(number(one.mean_memory_clock_mhz), "MHz")],
          ["Temperature", one.end_temperature_c === null ? null : figure(`${number(one.start_temperature_c)} to ${number(one.end_temperature_c)}`, "°C")],
          ["Power limit", one.power_limit_w === null ? null : figure(number(one.power_limit_w), "W")],
          ["Held down by", one.event_shares.length ? one.event_shares.map(shareWords).join(", ") : null],
        ]),
      ),
    ),
  ];
}

/**
 * @param {number | null} lowest
 * @param {number | null} highest
 */
function spread(lowest, highest) {
  return lowest === null || highest === null ? "" : `${number(lowest)} to ${number(highest)}`;
}

/** @param {{event: string, share: number}} one */
function shareWords(one) {
  return `${one.event.replaceAll("_", " ")} ${number(100 * one.share, 2)} % of the time`;
}

/** @param {any} measured */
function energyOf(measured) {
  const { energy, host_energy, idle_power_w } = measured;
  return section(
    "Energy",
    facts([
      ["Energy", energy.energy_j === null ? "none that may be used" : figure(number(energy.energy_j, 4), "J", energy.uncertainty_j === null ? "" : `±${number(energy.uncertainty_j)}`)],
      ["Scope", energy.scope.replaceAll("_", " ")],
      ["Method", energy.method],
      ["By", energy.detail],
      ["Not usable", energy.reasons.length ? energy.reasons.join("; ") : null],
      ["Notes", energy.notes.length ? energy.notes.join("; ") : null],
      ["Host CPU", host_energy?.mean_power_w == null || host_energy.reasons.length ? null : figure(number(host_energy.mean_power_w), "W, in none of these figures")],
      ["Idle", idle_power_w === null ? null : figure(number(idle_power_w), "W with the model loaded, subtracted from nothing")],
    ]),
  );
}

/** @param {any} measured */
function qualityOf(measured) {
  const { quality } = measured;
  if (!quality) return [];
  return [
    section(
      "Quality",
      facts([
        ["Perplexity", `${number(quality.perplexity_ratio, 4)}× that of ${quality.reference}`],
        ["KL divergence", quality.kl === null ? null : figure(number(quality.kl), "nats a position")],
        ["Same token", quality.top1_agreement === null ? null : figure(number(100 * quality.top1_agreement), "%")],
        ...quality.tasks.map((/** @type {any} */ one) => [one.task, `${number(one.score, 4)} ${one.metric}, reference ${number(one.reference_score, 4)}`]),
      ]),
    ),
  ];
}

/** @param {any} detail */
function runFacts(detail) {
  const { measurement } = detail;
  return facts([
    ["For", detail.role],
    ["Started", new Date(detail.started_at).toLocaleString()],
    ["Device kept for", detail.device_s === null ? null : lasting(detail.device_s)],
    ["Device energy", detail.device_j === null ? null : figure(number(detail.device_j, 4), "J")],
    ["Attempt", detail.attempt > 1 ? String(detail.attempt) : null],
    ["Launch", detail.session],
    ["Taken over from", detail.reused_from],
    ["Engine", measurement ? `${measurement.engine.engine} ${measurement.engine.version}` : null],
    ["Precision", measurement?.engine.precision ?? null],
  ]);
}
