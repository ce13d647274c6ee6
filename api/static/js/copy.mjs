// @ts-check
/** Copies commands. Where the clipboard is out of reach, the text is selected instead, for the keys that copy. */

const SHOWN_MS = 1600;

/**
 * Copy a text; false when the browser does not let us.
 * @param {string} text
 * @returns {Promise<boolean>}
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text); // not there without https, except on this machine
    return true;
  } catch {
    return false;
  }
}

/**
 * Show the copy buttons inside an element and let them copy the `code` beside them.
 * @param {ParentNode} root
 */
export function wireCopyButtons(root) {
  for (const button of root.querySelectorAll("button[data-copy]")) {
    if (!(button instanceof HTMLButtonElement) || !button.hidden) continue;
    button.hidden = false;
    button.addEventListener("click", () => void copyBeside(button));
  }
}

/** @param {HTMLButtonElement} button */
async function copyBeside(button) {
  const code = button.parentElement?.querySelector("code");
  if (!code) return;
  const isCopied = await copyText(code.textContent ?? "");
  if (!isCopied) getSelection()?.selectAllChildren(code);
  button.dataset.words ??= button.textContent ?? ""; // pressed again, it may still say what it did before
  button.textContent = isCopied ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (button.textContent = button.dataset.words ?? ""), SHOWN_MS);
}
