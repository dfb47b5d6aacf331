// The results: a click opens an image; arrow keys move between images as they lie on the page, and
// where one is open, to the one before or after it.
const tiles = () => [...element.querySelectorAll(".pv-item:not([hidden]) > .pv-tile")];
const stops = () => [...element.querySelectorAll(".pv-item:not([hidden]) > button")]; // "+2", too
const current = () => element.querySelector(".pv-tile[aria-current]");
const typing = (target) =>
  target.matches?.("textarea, select, input, [contenteditable], [role=listbox] *, [role=tab], [role=slider], video, .pv-ev-word");

const focus = (tile, how) => {
  for (const other of element.querySelectorAll(".pv-item > button")) other.tabIndex = other === tile ? 0 : -1;
  tile.focus(how);
};

const open = (tile) => {
  current()?.removeAttribute("aria-current");
  tile.setAttribute("aria-current", "true");
  focus(tile, { preventScroll: true });
  choose(Number(tile.dataset.picture));
};

// The open image is part of the address; `pvDeep` counts the entries since none was open.
const note = (id, push) => {
  const address = new URL(location.href), { pvDeep = 0, ...state } = history.state ?? {};
  if (address.searchParams.get("image") === id) return;
  const first = !address.searchParams.has("image");
  address.searchParams.set("image", id);
  if (push) history.pushState({ ...state, pvDeep: first ? 1 : pvDeep && pvDeep + 1 }, "", address);
  else history.replaceState(history.state, "", address);
};

element.addEventListener("click", (event) => {
  const tile = event.target.closest(".pv-tile");
  if (!tile) return;
  note(tile.dataset.picture, true);
  open(tile);
});

const step = (by) => {
  const all = tiles(), there = all[all.indexOf(current()) + by];
  if (!current()) return;
  if (!there) return by > 0 && element.querySelector(".pv-further")?.click();
  note(there.dataset.picture, false);
  open(there);
  there.scrollIntoView({ block: "nearest" });
};
document.addEventListener("pv-step", ({ detail }) => step(detail));

// The visitor went back to another open image of the same answer, or to none.
document.addEventListener("pv-image", (event) => {
  const id = new URLSearchParams(location.search).get("image");
  const tile = tiles().find((one) => one.dataset.picture === id);
  if (event.detail !== "search" || (id && !tile)) return;
  event.preventDefault();
  if (tile?.matches("[aria-current]")) return;
  if (tile) open(tile);
  else document.dispatchEvent(new Event("pv-close"));
});

// The tile of the next row that lies closest to above or below.
const across = (here, down) => {
  const box = here.getBoundingClientRect(), middle = box.left + box.width / 2;
  const rows = stops().map((tile) => [tile, tile.getBoundingClientRect()])
    .filter(([, other]) => (down ? other.top > box.bottom - 4 : other.bottom < box.top + 4));
  if (!rows.length) return null;
  const edge = down ? Math.min(...rows.map(([, other]) => other.top)) : Math.max(...rows.map(([, other]) => other.top));
  const far = ([, other]) => Math.abs(other.left + other.width / 2 - middle);
  return rows.filter(([, other]) => Math.abs(other.top - edge) < 4).sort((a, b) => far(a) - far(b))[0][0];
};

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (key === "/" && !typing(target)) {
    const boxes = document.querySelectorAll(":is(#pv-words, #pv-cmp-words, #pv-v-words) :is(textarea, input)");
    event.preventDefault();
    return [...boxes].find((box) => box.offsetParent)?.focus();
  }
  if (!element.offsetParent) return;
  if (key === "ArrowDown" && target.closest?.("#pv-words") && tiles().length) { // down into the answer
    event.preventDefault();
    return focus(tiles()[0]);
  }
  const here = target.closest?.("#pv-grid .pv-item > button");
  const sideways = { ArrowRight: 1, ArrowLeft: -1 }[key];
  if (sideways && current() && !typing(target) && (here || target === document.body || target.closest("#pv-inspector"))) {
    event.preventDefault();
    return step(sideways);
  }
  if (!here) return;
  const all = stops(), at = all.indexOf(here);
  const there = {
    ArrowRight: () => all[at + 1], ArrowLeft: () => all[at - 1], Home: () => all[0], End: () => all.at(-1),
    ArrowDown: () => across(here, true), ArrowUp: () => across(here, false),
  }[key];
  if (!there) return;
  event.preventDefault();
  const next = there();
  if (next) focus(next);
  else if (key === "ArrowUp") document.querySelector("#pv-words :is(textarea, input)")?.focus();
});

const button = (name, words, press, to, before = null) => {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", className: name, textContent: words });
  made.addEventListener("click", () => press(made));
  to.insertBefore(made, before);
  return made;
};
// Right after the question, a way past all that lies between it and its answer.
const skip = () => tiles().length && focus(tiles()[0]);
button("pv-skip", "Skip to the pictures", skip, document.querySelector("#pv-question"));
// On a narrow screen, all that can be chosen beside the question. It comes again when gradio draws the line anew.
const beside = document.querySelector("#pv-chips").parentElement;
const show = (made) => made.setAttribute("aria-expanded", made.ariaExpanded !== "true");
const narrow = () => {
  const chips = beside.querySelector("#pv-chips");
  if (chips && !chips.querySelector(".pv-options"))
    button("pv-options", "Options", show, chips, chips.firstElementChild).ariaExpanded = "false";
};
narrow();
new MutationObserver(narrow).observe(beside, { childList: true, subtree: true });
