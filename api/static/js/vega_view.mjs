// @ts-check
/**
 * A chart in an element: fetches its specification, embeds it, and keeps it as wide as the element and as light or dark
 * as the system asks for. Rows and parameters are set through the view, so that a chart grows without flicker and keeps
 * its zoom. Knows nothing of what a chart shows.
 *
 * Vega's expressions are interpreted (`ast`), as the content policy allows no `unsafe-eval`; tooltips are built of text.
 *
 * @typedef {{query: Record<string, string | string[]>, data: Record<string, object[]>, signals: Record<string, any>}} Wanted
 *   `query` decides about the specification, the rest is set through the view
 * @typedef {{title: string, lines: [string, string][], note?: string}} Tip
 */

/** @type {Promise<any> | undefined} */
let vega;
/** @type {Map<string, Promise<any>>} */
const specs = new Map();
const dark = matchMedia("(prefers-color-scheme: dark)");
/** Below this a chart is for a phone. */
const NARROW_PX = 480;

/** Return vega-embed; chart_head.html says where it lies, and has the browser fetch it early. */
function vegaEmbed() {
  const link = document.getElementById("vega");
  if (!(link instanceof HTMLLinkElement)) throw new Error("the page does not include chart_head.html");
  vega ??= import(link.href).then((module) => module.vegaEmbed);
  return vega;
}

/** @param {string} url */
function specOf(url) {
  let found = specs.get(url);
  if (!found) {
    found = fetch(url).then((answer) => {
      if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
      return answer.json();
    });
    specs.set(url, found);
    found.catch(() => specs.delete(url));
  }
  return found;
}

/**
 * Return a specification of Vega that does not ask of every row and axis whether the figure is one: interpreted, this takes
 * as long as the rest of a mark, and rows come without such that are not.
 * @param {any} spec
 */
function withoutChecks(spec) {
  for (const { encode } of spec.marks ?? []) {
    for (const [channel, rules] of Object.entries(encode?.update ?? {})) {
      if (Array.isArray(rules) && rules.length === 2 && rules[0].test?.startsWith("!isValid(datum[")) encode.update[channel] = rules[1];
    }
  }
  return spec;
}

export class VegaView extends EventTarget {
  /**
   * @param {HTMLElement} element  what it fills; whatever stands in it is replaced once the chart is there
   * @param {string} name  of the specification
   * @param {{wanted: () => Wanted, tip?: (datum: any) => Tip | null, heights?: [number, number],
   *   limitMetric?: () => string, isZoomed?: boolean, later?: string[]}} options  heights on phones and elsewhere; datasets
   *   of many rows to set once the chart has its size, as Vega draws everything again when it finds that
   */
  constructor(element, name, options) {
    super();
    this.element = element;
    this.name = name;
    this.options = options;
    /** @type {any} */
    this.view = null;
    this.stage = document.createElement("div");
    this.stage.className = "chart-stage";
    this.note = document.createElement("p");
    this.note.className = "chart-note";
    this.tooltip = document.createElement("div");
    this.tooltip.className = "chart-tip";
    this.tooltip.hidden = true;
    this.reset = document.createElement("button");
    this.reset.type = "button";
    this.reset.className = "small chart-reset";
    this.reset.textContent = "Reset zoom";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => void this.#draw({ keepsZoom: false }));
    /** What the view was made from. */
    this.drawn = "";
    this.isArmed = false;
    this.isPlaced = false;
    this.isRemoved = false;
    /** @type {Promise<void>} */
    this.work = Promise.resolve();
    this.isWaiting = false;
    this.onScheme = () => this.refresh();
    dark.addEventListener("change", this.onScheme);
    this.observer = new ResizeObserver(() => this.#fit());
    this.observer.observe(element);
    this.#armWheel();
    /** Settles when the chart was drawn first. */
    this.ready = this.refresh();
  }

  /** Bring the chart to what is wanted now; calls that come while one is under way are taken together. */
  refresh() {
    if (!this.isWaiting) {
      this.isWaiting = true;
      this.work = this.work.then(() => {
        this.isWaiting = false;
        return this.isRemoved ? undefined : this.#sync();
      });
    }
    return this.work;
  }

  /**
   * Set some of what is wanted, without the rest: ten thousand rows are not drawn anew for a limit that is dragged.
   * @param {{signals?: Record<string, any>, data?: Record<string, object[]>}} some
   */
  patch({ signals = {}, data = {} }) {
    this.work = this.work.then(async () => {
      if (!this.view || this.isRemoved) return;
      for (const [name, value] of Object.entries(signals)) this.view.signal(name, value);
      for (const [name, rows] of Object.entries(data)) this.view.data(name, rows);
      await this.view.runAsync();
    });
    return this.work;
  }

  /** Take the chart away, and everything that listens for it. */
  remove() {
    this.isRemoved = true;
    dark.removeEventListener("change", this.onScheme);
    this.observer.disconnect();
    this.view?.finalize();
    this.element.replaceChildren();
  }

  async #sync() {
    try {
      if (this.view && this.drawn === this.#url()) this.#fill(this.view);
      else await this.#draw();
      await this.view?.runAsync();
    } catch (error) {
      this.#fail(error);
    }
  }

  #url() {
    const query = new URLSearchParams({ scheme: dark.matches ? "dark" : "light" });
    for (const [name, value] of Object.entries(this.options.wanted().query)) {
      for (const one of [value].flat()) query.append(name, one);
    }
    return `/plot/specs/${this.name}?${query}`;
  }

  /** Make the view anew, in a stage of its own until it can be shown. */
  async #draw({ keepsZoom = true } = {}) {
    const url = this.#url();
    const [embed, spec] = await Promise.all([vegaEmbed(), specOf(url)]);
    if (this.isRemoved) return;
    const stage = document.createElement("div");
    stage.className = "chart-stage";
    const { view } = await embed(stage, this.#filled(spec), {
      ast: true,
      patch: withoutChecks,
      actions: false,
      defaultStyle: false,
      renderer: "canvas",
      tooltip: (/** @type {any} */ _, /** @type {any} */ event, /** @type {any} */ item) => this.#tip(event, item),
    });
    if (this.isRemoved) {
      view.finalize();
      return;
    }
    for (const name of this.options.later ?? []) view.data(name, this.options.wanted().data[name]);
    stage.dataset.scheme = dark.matches ? "dark" : "light"; // on paper, dark ones are turned over
    if (keepsZoom && !this.reset.hidden) {
      for (const ends of ["zoom_x", "zoom_y"]) view.signal(ends, this.view.signal(ends));
    } else {
      this.reset.hidden = true;
    }
    await view.runAsync();
    if (this.isRemoved) {
      view.finalize();
      return;
    }
    this.view?.finalize();
    this.view = view;
    this.drawn = url;
    if (this.isPlaced) this.stage.replaceWith(stage);
    else this.element.replaceChildren(stage, this.reset, this.note, this.tooltip);
    this.stage = stage;
    this.isPlaced = true;
    this.#listen(view, stage);
    this.#fit();
  }

  /**
   * Return a specification of the right size with what is wanted in it.
   * @param {any} spec
   */
  #filled(spec) {
    const width = this.#width();
    const { signals, data } = this.options.wanted();
    const none = Object.fromEntries((this.options.later ?? []).map((name) => [name, []]));
    const datasets = { ...spec.datasets, ...data, ...none };
    const params = (spec.params ?? []).map((/** @type {any} */ param) => (param.name in signals ? { ...param, value: signals[param.name] } : param));
    if (!spec.vconcat) return { ...spec, params, datasets, width, height: this.#height() };
    const inside = Math.max(160, width - 86); // what is left of it by the axis, its title and the paddings
    return { ...spec, datasets, vconcat: spec.vconcat.map((/** @type {any} */ panel) => ({ ...panel, width: inside })) };
  }

  #width() {
    return Math.max(220, Math.floor(this.element.clientWidth) || 640);
  }

  #height() {
    const [narrow, wide] = this.options.heights ?? [340, 420];
    return this.#width() < NARROW_PX ? narrow : wide;
  }

  #fit() {
    const width = this.#width();
    if (!this.view || this.fitted === width) return;
    const isFirst = this.fitted === undefined;
    this.fitted = width;
    if (isFirst) return;
    if (this.options.wanted().query.has_clock !== undefined) void this.#draw();
    else void this.view.width(width).height(this.#height()).runAsync();
  }

  /** @param {any} view */
  #fill(view) {
    const { data, signals } = this.options.wanted();
    for (const [name, value] of Object.entries(signals)) view.signal(name, value);
    for (const [name, rows] of Object.entries(data)) view.data(name, rows);
  }

  /** @param {any} view @param {HTMLElement} stage */
  #listen(view, stage) {
    view.addEventListener("click", (/** @type {any} */ _, /** @type {any} */ item) => {
      if (item?.datum?.trial !== undefined) this.dispatchEvent(new CustomEvent("select", { detail: item.datum }));
    });
    if (this.options.isZoomed) {
      for (const ends of ["zoom_x", "zoom_y"]) {
        view.addSignalListener(ends, (/** @type {string} */ _, /** @type {any} */ shown) => {
          this.reset.hidden = !shown;
        });
      }
    }
    if (this.options.limitMetric) this.#letDrag(view, stage);
  }

  /**
   * Let a pointer move the limit. The specification keeps its own dragging, of the view, off the limit's handle.
   * @param {any} view @param {HTMLElement} stage
   */
  #letDrag(view, stage) {
    const canvas = /** @type {HTMLElement} */ (stage.querySelector("canvas"));
    let isDragging = false;
    view.addEventListener("pointerdown", (/** @type {PointerEvent} */ event, /** @type {any} */ item) => {
      if (item?.mark?.name !== "limit_handle_marks") return;
      isDragging = true;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!isDragging) return;
      const place = event.clientX - canvas.getBoundingClientRect().left - view.padding().left - view.origin()[0];
      const inside = Math.min(Math.max(place, 0), view.signal("width"));
      const ms = Number(view.scale("x").invert(inside).toPrecision(3));
      if (ms > 0) this.dispatchEvent(new CustomEvent("limit", { detail: ms }));
    });
    const end = () => (isDragging = false);
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
  }

  /** The wheel scrolls the page until somebody presses on the chart, or with Ctrl: a page must not catch on a chart. */
  #armWheel() {
    const { element } = this;
    element.addEventListener("pointerdown", () => (this.isArmed = true));
    element.addEventListener("pointerleave", () => {
      this.isArmed = false;
      this.tooltip.hidden = true;
    });
    element.addEventListener(
      "wheel",
      (event) => {
        if (!this.isArmed && !event.ctrlKey && !event.metaKey) event.stopPropagation();
      },
      { capture: true },
    );
  }

  /** @param {any} event @param {any} item */
  #tip(event, item) {
    const tip = item?.datum && item.tooltip ? this.options.tip?.(item.datum) : null;
    this.tooltip.hidden = !tip;
    if (!tip) return;
    const title = document.createElement("b");
    title.textContent = tip.title;
    const list = document.createElement("dl");
    for (const [name, value] of tip.lines) {
      const term = document.createElement("dt");
      term.textContent = name;
      const words = document.createElement("dd");
      words.textContent = value;
      list.append(term, words);
    }
    this.tooltip.replaceChildren(title, list);
    if (tip.note) {
      const note = document.createElement("p");
      note.textContent = tip.note;
      this.tooltip.append(note);
    }
    this.#place(event);
  }

  /** @param {MouseEvent} event */
  #place(event) {
    const frame = this.element.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.tooltip;
    const x = event.clientX - frame.left;
    const y = event.clientY - frame.top;
    const left = x + 16 + width > frame.width ? x - 16 - width : x + 16;
    this.tooltip.style.left = `${Math.max(0, Math.min(left, frame.width - width))}px`;
    this.tooltip.style.top = `${Math.max(-8, Math.min(y - height / 2, frame.height - height))}px`;
  }

  /** @param {unknown} error */
  #fail(error) {
    console.warn("chart not drawn", error);
    const words = document.createElement("p");
    words.className = "chart-failed";
    words.textContent = "The chart could not be drawn. The table has the same figures. ";
    const again = document.createElement("button");
    again.type = "button";
    again.className = "small";
    again.textContent = "Try again";
    again.addEventListener("click", () => {
      vega = undefined;
      void this.refresh();
    });
    words.append(again);
    this.view?.finalize();
    this.view = null;
    this.isPlaced = false;
    this.element.replaceChildren(words);
  }
}
