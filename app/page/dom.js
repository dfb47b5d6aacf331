/** Builds elements. */

/**
 * @param {string} tag with classes: "button.quiet"
 * @param {Record<string, any>} [properties] `on*` are listeners, `data-*` and `aria-*` attributes
 * @param {...(Node|string|null|false|undefined)} children
 * @returns {any}
 */
export function el(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.includes("-") || key === "role" || key === "for") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== false && child !== undefined));
  return element;
}

/** Says something to screen readers, without moving the focus. @param {string} sentence */
export function announce(sentence) {
  const region = document.getElementById("live");
  if (region) region.textContent = sentence;
}

/** Shows a sentence at the bottom for some seconds. @param {string} sentence */
export function toast(sentence) {
  const box = document.getElementById("toast");
  if (!box) return;
  box.textContent = sentence;
  box.hidden = false;
  clearTimeout(Number(box.dataset.timer));
  box.dataset.timer = String(setTimeout(() => (box.hidden = true), 6000));
}

/** Offers a file for saving. @param {string} name @param {Blob} content */
export function save(name, content) {
  const url = URL.createObjectURL(content);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
