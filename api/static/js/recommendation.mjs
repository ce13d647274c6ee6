// @ts-check
/** The point to run inside a limit that is moved, and the commands that run it. The rule is that of api/recommend.py. */

import { byId, element, facts, figure, knobs } from "./elements.mjs";
import { problemOf } from "./figures.mjs";
import { interval, metricWords, number, times } from "./numbers.mjs";

/** @typedef {import("./figures.mjs").Figures} Figures */
/** @typedef {import("./figures.mjs").Point} Point */

const BETTER = 1.005;
const WORSE = 0.995;
const WAIT_MS = 250;

/**
 * The point of the front with the most tokens per joule inside a limit, of equals the one with the most throughput.
 * @param {Point[]} front
 * @param {number | null} limitMs null for no limit
 * @returns {Point | null}
 */
export function bestInside(front, limitMs) {
  /** @type {Point | null} */
  let best = null;
  for (const point of front) {
    if (limitMs !== null && point.latency_ms > limitMs) continue;
    const isBetter =
      !best ||
      point.tok_per_j > best.tok_per_j ||
      (point.tok_per_j === best.tok_per_j && point.output_tok_s > best.output_tok_s);
    if (isBetter) best = point;
  }
  return best;
}

/**
 * What commands hang on: they tell the figures too, which change as a point is measured again.
 * @param {Point} point
 */
function keyOf(point) {
  return [point.trial, point.num_windows, point.tok_per_j].join(" ");
}

export class Recommendation {
  /** @param {string} job */
  constructor(job) {
    this.job = job;
    /** @type {Point | null} the point whose commands are shown */
    this.point = null;
    this.form = byId("job").dataset.form ?? "vllm";
    /** @type {Map<string, Promise<{text: string, isThere: boolean}>>} */
    this.commands = new Map();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.wireTabs();
  }

  /**
   * Show the point to run under a limit; returns it.
   * @param {Figures} figures
   * @param {number | null} limitMs
   */
  show(figures, limitMs) {
    const best = bestInside(figures.front, limitMs);
    if (best) byId("use").replaceChildren(...this.told(figures, best, limitMs));
    else byId("use").replaceChildren(...this.none(figures, limitMs));
    byId("commands").hidden = best === null;
    const before = this.point;
    this.point = best;
    if (best && (!before || keyOf(best) !== keyOf(before))) {
      this.allowCopy(false); // what stands there is of another point
      clearTimeout(this.timer); // a line that is dragged passes many points
      this.timer = setTimeout(() => void this.showCommand(best), before ? WAIT_MS : 0);
    }
    return best;
  }

  /**
   * @param {Figures} figures
   * @param {Point} best
   * @param {number | null} limitMs
   */
  told(figures, best, limitMs) {
    const place = figures.trials.number.indexOf(best.trial);
    const values = Object.fromEntries(figures.knobs.map((name) => [name, figures.trials.knobs[name][place]]));
    const gain = best.gain_over_default;
    const kind = gain === null ? "" : gain > BETTER ? " better" : gain < WORSE ? " worse" : "";
    const latency = figure(number(best.latency_ms, 4), "ms", interval(best.latency_low_ms, best.latency_high_ms));
    return [
      element(
        "p",
        { class: "use-figure" },
        figure(number(best.tok_per_j), "tok/J", interval(best.tok_per_j_low, best.tok_per_j_high)),
      ),
      facts([
        ["Trial", String(best.trial)],
        ["Over the default", element("span", { class: `gain${kind}` }, times(gain))],
        [metricWords(figures.latency_metric), latency],
        ["Power", figure(number(best.mean_power_w), "W")],
        ["Throughput", figure(number(best.output_tok_s), "tok/s")],
        ["Settings", knobs(values)],
        ["Tied with", best.tied_with.length ? `trial ${best.tied_with.join(", ")}: the figures do not tell them apart` : null],
      ]),
      ...this.notes(figures, best, limitMs),
    ];
  }

  /**
   * @param {Figures} figures
   * @param {Point} best
   * @param {number | null} limitMs
   */
  notes(figures, best, limitMs) {
    const notes = [];
    const own = figures.sla[figures.latency_metric];
    if (own !== undefined && (limitMs === null || limitMs > own)) {
      notes.push(`The job's own limit is ${number(own, 6)} ms: what it measured beyond that is greyed and on no front.`);
    }
    if (limitMs !== null && best.latency_high_ms !== null && best.latency_high_ms > limitMs) {
      notes.push("The far end of its latency's interval is outside of the limit.");
    }
    return notes.map((words) => element("p", { class: "quiet small" }, words));
  }

  /**
   * @param {Figures} figures
   * @param {number | null} limitMs
   */
  none(figures, limitMs) {
    const fastest = figures.front[0];
    if (!fastest) {
      const isActive = figures.state === "queued" || figures.state === "running";
      const words = isActive
        ? "The first complete trial makes a recommendation; it is shown here."
        : figures.trials.state.includes("infeasible")
          ? "No point is inside the job's limits, so there is none to run. The nearest misses below say which limit to loosen."
          : "No trial gave a usable measurement, so there is no point to run.";
      return [element("p", { class: "quiet" }, words)];
    }
    return [
      element("p", {}, `No point of the front is inside ${number(limitMs, 6)} ms.`),
      element(
        "p",
        { class: "quiet" },
        `The fastest is trial ${fastest.trial} with ${number(fastest.latency_ms, 4)} ms at ${number(fastest.tok_per_j)} tok/J. Give it that much, or search more values.`,
      ),
    ];
  }

  wireTabs() {
    const list = byId("commands").querySelector("[role=tablist]");
    if (!(list instanceof HTMLElement)) return;
    list.hidden = false;
    document.getElementById("command-links")?.remove(); // what the tabs take the place of
    byId("command-panel").hidden = false;
    const tabs = /** @type {HTMLElement[]} */ ([...list.querySelectorAll("[role=tab]")]);
    for (const [place, tab] of tabs.entries()) {
      tab.addEventListener("click", () => this.choose(tabs, place));
      tab.addEventListener("keydown", (event) => {
        const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 };
        const to = moves[/** @type {keyof moves} */ (event.key)];
        if (to === undefined) return;
        event.preventDefault();
        this.choose(tabs, (to + tabs.length) % tabs.length);
        tabs[(to + tabs.length) % tabs.length].focus();
      });
    }
  }

  /**
   * @param {HTMLElement[]} tabs
   * @param {number} chosen
   */
  choose(tabs, chosen) {
    for (const [place, tab] of tabs.entries()) {
      tab.setAttribute("aria-selected", String(place === chosen));
      tab.tabIndex = place === chosen ? 0 : -1;
    }
    this.form = tabs[chosen].dataset.form ?? this.form;
    byId("command-panel").setAttribute("aria-labelledby", tabs[chosen].id);
    if (!this.point) return;
    this.allowCopy(false);
    void this.showCommand(this.point);
  }

  /** @param {Point} point */
  async showCommand(point) {
    const { form } = this;
    const asked = `${form}/${keyOf(point)}`;
    const found = this.commands.get(asked) ?? this.ask(form, point.trial);
    this.commands.set(asked, found);
    const { text, isThere } = await found;
    if (!isThere) this.commands.delete(asked);
    if (!this.point || asked !== `${this.form}/${keyOf(this.point)}`) return; // moved on meanwhile
    const panel = byId("command-panel");
    const code = panel.querySelector("code");
    if (code) code.textContent = text;
    panel.classList.toggle("is-refused", !isThere);
    this.allowCopy(isThere);
  }

  /** @param {boolean} isAllowed */
  allowCopy(isAllowed) {
    const panel = byId("command-panel");
    panel.setAttribute("aria-busy", String(!isAllowed));
    const button = panel.querySelector("button[data-copy]");
    if (button instanceof HTMLButtonElement) button.disabled = !isAllowed;
  }

  /**
   * @param {string} form
   * @param {number} trial
   */
  async ask(form, trial) {
    try {
      const answer = await fetch(`/v1/jobs/${encodeURIComponent(this.job)}/export?form=${form}&number=${trial}`);
      if (answer.ok) return { text: await answer.text(), isThere: true };
      return { text: `# ${await problemOf(answer)}`, isThere: false };
    } catch {
      return { text: "# The server does not answer. Choose the tab again to try once more.", isThere: false };
    }
  }
}
