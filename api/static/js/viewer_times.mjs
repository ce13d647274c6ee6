// @ts-check
/** Times in the reader's own zone, beside those of a schedule's zone. */

export const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const FORM = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/**
 * An instant as the reader's clock shows it.
 * @param {string} iso
 */
export function ownTime(iso) {
  return `${FORM.format(new Date(iso))} ${OWN_ZONE}`;
}

/**
 * Fill in the reader's times inside an element, where the zone is another.
 * @param {ParentNode} root
 */
export function tellOwnTimes(root) {
  for (const place of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-viewer]"))) {
    const isElsewhere = place.dataset.zone !== OWN_ZONE;
    place.textContent = isElsewhere ? `yours: ${ownTime(place.dataset.viewer ?? "")}` : "";
  }
}
