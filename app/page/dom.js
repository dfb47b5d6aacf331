/** Creates elements, and shows menus, messages and file downloads. */

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

/** @param {any} label @param {(event: any) => void} onclick @param {string} [tag] @param {Record<string, any>} [properties] */
export const button = (label, onclick, tag = "button", properties = {}) =>
  el(tag, { type: "button", onclick, ...properties }, label);

/**
 * A button that is on or off.
 * @param {string} tag
 * @param {string} key by which `redraw` keeps the focus
 * @param {boolean} pressed
 * @param {() => void} onclick
 * @param {...any} children
 */
export const toggle = (tag, key, pressed, onclick, ...children) =>
  el(tag, { type: "button", "data-key": key, "aria-pressed": String(pressed), onclick }, ...children);

/** A round button without words. @param {string} label for screen readers @param {string} sign @param {() => void} onclick */
export const icon = (label, sign, onclick) =>
  button(sign, onclick, "button.quiet.round", { "aria-label": label, title: label });

/** @param {string} label for screen readers @param {any[]} options @param {any} value @param {(value: string) => void} change */
export function select(label, options, value, change) {
  const shared = { "aria-label": label, "data-key": label, onchange: () => change(chosen.value) };
  const chosen = el("select", shared, ...options);
  chosen.value = value;
  return chosen;
}

/** An SVG element. @param {string} tag @param {Record<string, any>} [attributes] @param {...(Node|string)} children @returns {any} */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** Replaces the content of a container; the child with the same `data-key` keeps the focus. @param {any} container @param {...any} children */
export function redraw(container, ...children) {
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  container.replaceChildren(...children.filter(Boolean));
  if (focused) container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** A button that opens a sheet below it. @param {any} title @param {string} kind class @param {...any} content */
export const menu = (title, kind, ...content) =>
  el(`details.menu.${kind}`, {}, el("summary", {}, title), el("div.sheet", {}, ...content));

/** Closes open menus, except one that contains an element. @param {any} [element] @returns {boolean} whether one was open */
export function closeMenus(element = null) {
  const open = [...document.querySelectorAll("details.menu[open]")].filter((each) => !each.contains(element));
  for (const each of open) each.removeAttribute("open");
  return open.length > 0;
}

/**
 * The nearest element in the direction of an arrow key.
 * @param {Element} from
 * @param {Iterable<Element>} others
 * @param {string} key "ArrowLeft", "ArrowRight", "ArrowUp" or "ArrowDown"
 * @returns {any} null if there is none in this direction
 */
export function nearest(from, others, key) {
  // (right, down) is the unit vector of the arrow
  const [right, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key] ?? [0, 0];
  const centre = (element) => {
    const { left, top, width, height } = element.getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  };
  const [x, y] = centre(from);
  let best = { element: null, distance: Infinity };
  for (const element of others) {
    const [cx, cy] = centre(element);
    const ahead = (cx - x) * right + (cy - y) * down;
    const aside = Math.abs((cx - x) * down) + Math.abs((cy - y) * right);
    const distance = down ? 10 * ahead + aside : ahead + 3 * aside;
    if (ahead > 8 && distance < best.distance) best = { element, distance };
  }
  return best.element;
}

/** Announces a sentence to screen readers. @param {string} sentence */
export function announce(sentence) {
  /** @type {any} */ (document.getElementById("live")).textContent = sentence;
}

/** Shows a sentence at the bottom for some seconds. @param {string} sentence */
export function toast(sentence) {
  const box = /** @type {any} */ (document.getElementById("toast"));
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
