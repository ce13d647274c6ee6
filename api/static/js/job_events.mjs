// @ts-check
/**
 * Follows a job: tells what happens, goes on after the last event that was seen, and says when the connection is lost.
 * The browser's own EventSource comes back by itself after most losses; where the server refused it gives up, so that
 * this tries again, later each time. A page that nobody looks at follows nothing: browsers keep six connections to a
 * server for all of their tabs, and each stream takes one.
 */

const KINDS = ["job", "trial_started", "trial"];
const ENDED = ["finished", "failed", "cancelled"];
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30_000;

export class JobEvents {
  /**
   * @param {string} job
   * @param {number} last number of the last event that is known
   * @param {{onEvent: (kind: string, data: any) => void, onLost: (isLost: boolean) => void, onEnd: () => void}} events
   */
  constructor(job, last, events) {
    this.job = job;
    this.last = last;
    this.events = events;
    this.waitMs = FIRST_WAIT_MS;
    /** @type {EventSource | null} */
    this.source = null;
    this.isOver = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    if (!document.hidden) this.open();
    addEventListener("online", () => this.reopen());
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.reopen()));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.reopen());
  }

  open() {
    this.source = new EventSource(`/v1/jobs/${encodeURIComponent(this.job)}/events?after=${this.last}`);
    this.source.addEventListener("open", () => {
      this.waitMs = FIRST_WAIT_MS;
      this.events.onLost(false);
    });
    for (const kind of KINDS) this.source.addEventListener(kind, (event) => this.take(kind, event));
    this.source.addEventListener("error", () => this.lost());
  }

  reopen() {
    if (this.isOver || document.hidden || this.source?.readyState === EventSource.OPEN) return;
    this.close();
    this.open();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
  }

  /**
   * @param {string} kind
   * @param {MessageEvent} event
   */
  take(kind, event) {
    this.last = Number(event.lastEventId) || this.last;
    const data = JSON.parse(event.data);
    this.events.onEvent(kind, data);
    if (kind !== "job" || !ENDED.includes(data.state)) return;
    this.isOver = true;
    this.close();
    this.events.onEnd();
  }

  lost() {
    if (this.isOver) return;
    this.events.onLost(true);
    if (this.source?.readyState !== EventSource.CLOSED) return; // it comes back by itself
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.reopen(), this.waitMs);
    this.waitMs = Math.min(2 * this.waitMs, LONGEST_WAIT_MS);
  }
}
