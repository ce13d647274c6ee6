// @ts-check
/**
 * A table of thousands of trials: only the rows in view are in the page, each in the place of its number, so that a
 * row that stays in view is not touched. Roles are written out, as the layout is not a table's. Sorts by any column, filters by text and by
 * state, follows the keyboard: arrows, Page Up and Down, Home and End move, Enter opens a trial.
 */

import { element } from "./elements.mjs";
import { interval, metricWords, number } from "./numbers.mjs";

/** @typedef {import("./figures.mjs").Figures} Figures */

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} label
 * @property {number} width in characters
 * @property {boolean} isFigure
 * @property {(place: number) => number | string | null} value what it is sorted by
 * @property {(place: number) => string} text
 */

/** @typedef {{row: HTMLElement, index: number, place: number}} Row */

const ROW_PX = 30;
/** Rows beyond each edge of the view: a turn of the wheel shows no gap. */
const OVERSCAN = 6;
const CHARACTER_PX = 7.4;
const PADDING_PX = 22;
const PAGE_ROWS = 12;
const OPEN = "Open trial ";

export class TrialTable {
  /**
   * @param {HTMLElement} root
   * @param {{onOpen: (place: number) => void, onCount: (words: string) => void}} events
   */
  constructor(root, events) {
    this.events = events;
    /** @type {Figures | null} */
    this.figures = null;
    /** @type {Column[]} */
    this.columns = [];
    /** @type {number[]} places of the trials that are shown, in order */
    this.order = [];
    this.sortKey = "number";
    this.isDescending = false;
    this.active = 0;
    /** @type {Row[]} */
    this.rows = [];
    /** Whether rows show figures of before. */
    this.isStale = false;
    /** @type {number | null} */
    this.marked = null;
    /** @type {string[]} what each trial is searched in; made when first needed */
    this.words = [];
    this.isPlanned = false;
    this.text = /** @type {HTMLInputElement} */ (
      element("input", { id: "f-trials", type: "search", placeholder: "max_batch=64 oom", autocomplete: "off" })
    );
    this.state = /** @type {HTMLSelectElement} */ (element("select", { id: "f-trial-state" }));
    this.head = element("thead", { role: "rowgroup" });
    this.body = element("tbody", { role: "rowgroup" });
    this.table = element("table", { class: "dense virtual", role: "table", "aria-label": "Trials" }, this.head, this.body);
    this.region = element(
      "div",
      { class: "table-scroll virtual-region", tabindex: "0", role: "region", "aria-label": "Trials, scrolls" },
      this.table,
    );
    this.none = element("div", { class: "empty", hidden: true });
    const clear = element("button", { type: "button", class: "plain" }, "Clear the filter");
    this.none.append(element("p", {}, "No trial matches the filter."), clear);
    clear.addEventListener("click", () => this.clearFilter());
    root.replaceChildren(this.filters(), this.region, this.none);
    this.listen();
  }

  filters() {
    return element(
      "div",
      { class: "filters trials-filters" },
      element("p", { class: "field" }, element("label", { for: "f-trials" }, "Trials that contain"), this.text),
      element("p", { class: "field" }, element("label", { for: "f-trial-state" }, "State"), this.state),
    );
  }

  listen() {
    this.text.addEventListener("input", () => this.refilter());
    this.state.addEventListener("change", () => this.refilter());
    this.region.addEventListener("scroll", () => this.plan(), { passive: true });
    new ResizeObserver(() => this.plan()).observe(this.region);
    this.head.addEventListener("click", (event) => this.sortBy(event));
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** @param {Figures} figures */
  show(figures) {
    const before = this.columns.map((column) => column.key).join();
    this.figures = figures;
    this.words = [];
    this.columns = columnsOf(figures);
    if (this.columns.map((column) => column.key).join() !== before) this.drawHead();
    this.drawStates();
    this.isStale = true;
    this.arrange();
    this.isStale = false;
  }

  /**
   * Mark a trial's row; null marks none.
   * @param {number | null} trial
   */
  mark(trial) {
    if (this.marked === trial) return;
    this.marked = trial;
    this.plan();
  }

  clearFilter() {
    this.text.value = "";
    this.state.value = "";
    this.refilter();
    this.text.focus();
  }

  refilter() {
    this.region.scrollTop = 0;
    this.active = 0;
    this.arrange();
  }

  /** Choose and order what is shown. */
  arrange() {
    const figures = this.figures;
    if (!figures) return;
    const { number: numbers, state: states } = figures.trials;
    const wanted = this.state.value;
    const parts = this.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (parts.length && !this.words.length) this.words = searchWords(figures);
    /** @type {number[]} */
    const order = [];
    for (let place = 0; place < numbers.length; place += 1) {
      if (wanted && states[place] !== wanted) continue;
      if (parts.length && !parts.every((part) => this.words[place].includes(part))) continue;
      order.push(place);
    }
    this.order = this.sorted(order);
    this.active = Math.min(this.active, Math.max(0, order.length - 1));
    this.none.hidden = order.length > 0;
    this.region.hidden = order.length === 0;
    this.table.setAttribute("aria-rowcount", String(order.length + 1));
    const isAll = order.length === numbers.length;
    const shown = isAll ? `${numbers.length.toLocaleString("en")} trials` : `${order.length.toLocaleString("en")} of ${numbers.length.toLocaleString("en")} trials`;
    this.events.onCount(shown);
    this.draw();
  }

  /** @param {number[]} order */
  sorted(order) {
    const column = this.columns.find((one) => one.key === this.sortKey);
    if (!column) return order;
    const values = new Map(order.map((place) => [place, column.value(place)]));
    const sign = this.isDescending ? -1 : 1;
    return order.sort((one, other) => {
      const a = values.get(one) ?? null;
      const b = values.get(other) ?? null;
      if (a === b) return one - other;
      if (a === null) return 1; // what is not known comes last, whatever the direction
      if (b === null) return -1;
      if (typeof a === typeof b) return a < b ? -sign : sign;
      return String(a) < String(b) ? -sign : sign;
    });
  }

  /** @param {Event} event */
  sortBy(event) {
    const head = event.target instanceof Element ? event.target.closest("th") : null;
    if (!head) return;
    const key = head.dataset.key ?? "";
    const column = this.columns.find((one) => one.key === key);
    // Of figures the largest are asked for first.
    this.isDescending = key === this.sortKey ? !this.isDescending : Boolean(column?.isFigure) && key !== "number";
    this.sortKey = key;
    for (const one of this.head.querySelectorAll("th")) {
      if (one.dataset.key === key) one.setAttribute("aria-sort", this.isDescending ? "descending" : "ascending");
      else one.removeAttribute("aria-sort");
    }
    this.refilter();
  }

  drawHead() {
    const row = element("tr", { role: "row", "aria-rowindex": 1 });
    let total = 0;
    for (const column of this.columns) {
      const button = element("button", { type: "button", class: "sort" }, column.label);
      const kind = column.isFigure ? "n" : "";
      const head = element("th", { role: "columnheader", scope: "col", class: kind, "data-key": column.key }, button);
      if (column.key === this.sortKey) head.setAttribute("aria-sort", this.isDescending ? "descending" : "ascending");
      head.style.width = `${widthOf(column)}px`;
      total += widthOf(column);
      row.append(head);
    }
    this.table.style.minWidth = `${total}px`;
    this.head.replaceChildren(row);
    this.body.replaceChildren();
    this.rows = [];
  }

  drawStates() {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const state of this.figures?.trials.state ?? []) counts.set(state, (counts.get(state) ?? 0) + 1);
    const chosen = this.state.value;
    const options = [element("option", { value: "" }, "any")];
    for (const [state, count] of counts) {
      options.push(element("option", { value: state }, `${state} (${count.toLocaleString("en")})`));
    }
    this.state.replaceChildren(...options);
    this.state.value = counts.has(chosen) ? chosen : "";
  }

  /** Draw before the next frame, once. */
  plan() {
    if (this.isPlanned) return;
    this.isPlanned = true;
    requestAnimationFrame(() => {
      this.isPlanned = false;
      this.draw();
    });
  }

  /** Put the rows in view into the page: the same elements at other places, as new ones would cost a layout. */
  draw() {
    if (!this.figures) return;
    const height = this.region.clientHeight || 400;
    const first = Math.max(0, Math.floor(this.region.scrollTop / ROW_PX) - OVERSCAN);
    const last = Math.min(this.order.length, Math.ceil((this.region.scrollTop + height) / ROW_PX) + OVERSCAN);
    const hadFocus = this.body.contains(document.activeElement);
    while (this.rows.length < last - first) this.rows.push(this.addRow());
    const count = this.rows.length;
    for (const [at, row] of this.rows.entries()) {
      const index = first + ((((at - first) % count) + count) % count); // the one index in view that is `at` modulo count
      this.fill(row, index < last ? index : -1);
    }
    this.body.style.height = `${this.order.length * ROW_PX}px`;
    if (hadFocus) (this.buttonAt(this.active) ?? this.region).focus({ preventScroll: true });
  }

  addRow() {
    const row = element("tr", { role: "row" });
    for (const column of this.columns) {
      const cell = element("td", { role: "cell", class: column.isFigure ? "n" : "" });
      if (column.key === "number") cell.append(element("button", { type: "button", class: "open" }));
      else if (column.key === "state") cell.append(element("span"));
      cell.style.width = `${widthOf(column)}px`;
      row.append(cell);
    }
    this.body.append(row);
    return { row, index: -1, place: -1 };
  }

  /**
   * Let a row show a trial; -1 shows none.
   * @param {Row} shown
   * @param {number} index
   */
  fill(shown, index) {
    const { row } = shown;
    if (row.hidden !== index < 0) row.hidden = index < 0;
    const hasMoved = shown.index !== index;
    shown.index = index;
    if (index < 0) return;
    const place = this.order[index];
    const { trials } = /** @type {Figures} */ (this.figures);
    const isMarked = trials.number[place] === this.marked;
    const className = isMarked ? `${trials.state[place]} best` : trials.state[place];
    if (row.className !== className) row.className = className;
    if (hasMoved) {
      row.setAttribute("aria-rowindex", String(index + 2));
      row.dataset.index = String(index);
      row.style.transform = `translateY(${index * ROW_PX}px)`;
    }
    const button = /** @type {HTMLElement} */ (row.firstElementChild?.firstElementChild);
    const tabIndex = index === this.active ? 0 : -1;
    if (button.tabIndex !== tabIndex) button.tabIndex = tabIndex;
    if (shown.place === place && !this.isStale) return;
    shown.place = place;
    for (const [at, column] of this.columns.entries()) {
      const cell = /** @type {HTMLElement} */ (row.children[at]);
      const text = column.text(place);
      const inner = /** @type {HTMLElement | null} */ (cell.firstElementChild);
      if ((inner ?? cell).textContent !== text) (inner ?? cell).textContent = text;
      if (column.key === "number") button.setAttribute("aria-label", OPEN + text);
      else if (inner) inner.className = `state ${text}`;
      else if (column.key === "detail") cell.title = text;
    }
  }

  /** @param {number} index */
  buttonAt(index) {
    return /** @type {HTMLElement | null} */ (this.body.querySelector(`tr[data-index="${index}"] button.open`));
  }

  /** @param {Event} event */
  clicked(event) {
    const row = event.target instanceof Element ? event.target.closest("tr[data-index]") : null;
    if (!(row instanceof HTMLElement) || String(getSelection() ?? "")) return; // somebody marks text
    this.active = Number(row.dataset.index);
    this.draw();
    this.buttonAt(this.active)?.focus({ preventScroll: true });
    this.events.onOpen(this.order[this.active]);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const last = this.order.length - 1;
    const moves = {
      ArrowDown: this.active + 1,
      ArrowUp: this.active - 1,
      PageDown: this.active + PAGE_ROWS,
      PageUp: this.active - PAGE_ROWS,
      Home: 0,
      End: last,
    };
    const to = moves[/** @type {keyof moves} */ (event.key)];
    if (to === undefined) return;
    event.preventDefault();
    this.active = Math.max(0, Math.min(last, to));
    this.reveal(this.active);
    this.draw();
    this.buttonAt(this.active)?.focus({ preventScroll: true });
  }

  /** @param {number} index */
  reveal(index) {
    const top = index * ROW_PX;
    const view = this.region.clientHeight - 2 * ROW_PX; // the head covers the first rows
    if (top < this.region.scrollTop) this.region.scrollTop = top;
    else if (top > this.region.scrollTop + view) this.region.scrollTop = top - view;
  }
}

/** @param {Column} column */
function widthOf(column) {
  return Math.round(column.width * CHARACTER_PX + PADDING_PX);
}

/**
 * Each trial as the text that is searched, in lower case.
 * @param {Figures} figures
 */
function searchWords(figures) {
  const { trials } = figures;
  return trials.number.map((/** @type {number} */ number, /** @type {number} */ place) => {
    const knobs = figures.knobs.map((name) => `${name}=${trials.knobs[name][place]}`).join(" ");
    const told = `#${number} ${trials.state[place]} ${trials.role[place]} ${trials.reason[place] ?? ""}`;
    return `${told} ${trials.detail[place] ?? ""} ${knobs}`.toLowerCase();
  });
}

/**
 * The columns that there are figures for.
 * @param {Figures} figures
 * @returns {Column[]}
 */
function columnsOf(figures) {
  const { trials, latency_metric: metric } = figures;
  const others = figures.metrics.filter((name) => name !== metric && (name in figures.sla || OTHERS.includes(name)));
  const told = (/** @type {number} */ place) => trials.detail[place] ?? trials.reason[place];
  const isRepeat = trials.role.some((/** @type {string} */ role) => role !== "screening");
  return [
    { key: "number", label: "#", width: 6, isFigure: true, value: (place) => trials.number[place], text: numberText },
    plain("state", "State", 13, trials.state),
    ...figures.knobs.map((name) => knob(name, trials.knobs[name])),
    measured("tok_per_j", "tok/J", trials.tok_per_j),
    bounds("tok_per_j_interval", "95 %", trials.tok_per_j_low, trials.tok_per_j_high),
    measured(metric, `${metricWords(metric)}, ms`, trials.latencies_ms[metric], 4),
    ...others.map((name) => measured(name, `${metricWords(name)}, ms`, trials.latencies_ms[name], 4)),
    measured("output_tok_s", "tok/s", trials.output_tok_s),
    measured("mean_power_w", "Power, W", trials.mean_power_w),
    ...some("mean_clock_mhz", "Clock, MHz", trials.mean_clock_mhz, 4),
    ...some("host_power_w", "Host CPU, W", trials.host_power_w),
    ...some("perplexity_ratio", "Perplexity, ×", trials.perplexity_ratio, 4),
    measured("num_finished", "Requests", trials.num_finished, 6),
    measured("window_s", "Window, s", trials.window_s),
    ...(isRepeat ? [plain("role", "For", 9, trials.role)] : []),
    { key: "detail", label: "Why", width: 46, isFigure: false, value: told, text: (place) => told(place) ?? "" },
  ];

  /** @param {number} place */
  function numberText(place) {
    return trials.attempt[place] > 1 ? `${trials.number[place]}.${trials.attempt[place]}` : String(trials.number[place]);
  }
}

/** Latencies that have a column besides those of the limits. */
const OTHERS = ["ttft_p50_ms", "tpot_p90_ms"];

/**
 * @param {string} key
 * @param {string} label
 * @param {(number | null)[]} column
 * @param {number} [digits]
 * @returns {Column}
 */
function measured(key, label, column, digits = 3) {
  const value = (/** @type {number} */ place) => column[place];
  return { key, label, width: Math.max(8, label.length), isFigure: true, value, text: (place) => number(column[place], digits) };
}

/**
 * A column where there is any figure for it.
 * @param {string} key
 * @param {string} label
 * @param {(number | null)[]} column
 * @param {number} [digits]
 */
function some(key, label, column, digits = 3) {
  return column.some((value) => value !== null) ? [measured(key, label, column, digits)] : [];
}

/**
 * @param {string} key
 * @param {string} label
 * @param {(number | null)[]} low
 * @param {(number | null)[]} high
 * @returns {Column} sorted by its width
 */
function bounds(key, label, low, high) {
  const value = (/** @type {number} */ place) => (low[place] === null || high[place] === null ? null : high[place] - low[place]);
  return { key, label, width: 14, isFigure: true, value, text: (place) => interval(low[place], high[place]) || "–" };
}

/**
 * @param {string} name
 * @param {(number | string | null)[]} column
 * @returns {Column}
 */
function knob(name, column) {
  const isFigure = column.every((value) => typeof value !== "string");
  const longest = column.reduce((/** @type {number} */ most, value) => Math.max(most, String(value ?? "").length), name.length);
  const text = (/** @type {number} */ place) => (column[place] === null ? "–" : String(column[place]));
  return { key: `knob ${name}`, label: name, width: longest + 1, isFigure, value: (place) => column[place], text };
}

/**
 * @param {string} key
 * @param {string} label
 * @param {number} width
 * @param {string[]} column
 * @returns {Column}
 */
function plain(key, label, width, column) {
  return { key, label, width, isFigure: false, value: (place) => column[place], text: (place) => column[place] };
}
