// The columns: a picture pointed at or moved to lights up in all of them, of a clip the frame that each
// column likes best, and opens on a click.
const tiles = () => [...element.querySelectorAll(".pv-cmp-grid .pv-cmp-tile[data-id]")];
const frame = () => element.querySelector(".pv-cmp");
const dialog = () => element.querySelector("dialog");
let lit = null; // the file of the picture that is lit

const light = (file) => {
  if (file === lit) return;
  lit = file;
  frame()?.classList.toggle("pv-cmp-lit", file !== null);
  for (const tile of element.querySelectorAll("[data-id]"))
    tile.classList.toggle("pv-cmp-same", tile.dataset.file === file);
};

const under = (event) => event.target.closest?.("[data-id]")?.dataset.file ?? null;
// moves only: what a new answer puts beneath a resting mouse must not take the light from the keyboard
element.addEventListener("pointermove", (event) => event.pointerType === "mouse" && light(under(event)));
element.addEventListener("pointerleave", () => light(null));
element.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && light(under(event)));
element.addEventListener("focusout", () => light(null));

const focus = (tile) => {
  for (const other of tiles()) other.tabIndex = other === tile ? 0 : -1;
  tile.focus();
};

element.addEventListener("keydown", (event) => {
  const tile = event.target.closest(".pv-cmp-tile[data-id]");
  if (!tile || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return tile.blur();
  const row = Number(tile.dataset.row), column = Number(tile.dataset.column);
  const all = tiles();
  const at = (r, c) => all.find((t) => Number(t.dataset.row) === r && Number(t.dataset.column) === c);
  const last = Math.max(...all.map((t) => Number(t.dataset.column)));
  const there = {
    ArrowDown: () => at(row + 1, column), ArrowUp: () => at(row - 1, column),
    ArrowRight: () => at(row, column + 1), ArrowLeft: () => at(row, column - 1),
    Home: () => at(row, 0), End: () => at(row, last),
  }[event.key];
  if (!there) return;
  event.preventDefault();
  const next = there();
  if (next) focus(next);
  else if (event.key === "ArrowUp") document.querySelector("#pv-cmp-words :is(textarea, input)")?.focus();
});

// From the question down into its answer.
document.addEventListener("keydown", (event) => {
  if (event.key !== "ArrowDown" || !event.target.closest?.("#pv-cmp-words")) return;
  const first = tiles()[0];
  if (!first) return;
  event.preventDefault();
  focus(first);
});

const make = (tag, words, parent, name) => {
  const made = document.createElement(tag);
  if (words) made.textContent = words;
  if (name) made.className = name;
  parent.append(made);
  return made;
};

const open = (id) => {
  const facts = JSON.parse(frame().dataset.facts);
  const picture = facts.pictures[id];
  const box = dialog();
  box.replaceChildren();
  const image = make("img", "", box);
  image.src = picture.address;
  image.alt = picture.captions[0] ?? picture.file;
  const about = make("div", "", box);
  const head = make("header", "", about);
  make("h3", picture.file, head).id = "pv-cmp-look-title";
  if (picture.moment) make("p", picture.moment, about);
  if (picture.right) make("p", picture.right, about, "pv-cmp-verdict");
  const ranks = make("dl", "", about);
  facts.columns.forEach((title, i) => {
    const row = make("div", "", ranks, picture.ranks[i] <= facts.k ? "pv-cmp-listed" : "");
    make("dt", title, row);
    make("dd", `rank ${picture.ranks[i].toLocaleString("en")}${picture.moments[i] && `, ${picture.moments[i]}`}`, row);
  });
  const list = make("ul", "", about);
  for (const caption of picture.captions) make("li", caption, list);
  const foot = make("footer", "", about);
  const ask = make("button", "Compare with this picture", foot);
  ask.addEventListener("click", () => {
    box.close();
    choose(Number(id));
  });
  const close = make("button", "Close", foot);
  close.addEventListener("click", () => box.close());
  for (const button of [ask, close]) button.type = "button";
  box.showModal();
  close.focus();
};

element.addEventListener("click", (event) => {
  if (event.target === dialog()) return dialog().close(); // outside of it
  const tile = event.target.closest("[data-id]");
  if (!tile) return;
  if (tile.matches(".pv-cmp-tile")) focus(tile);
  open(tile.dataset.id);
});

watch("value", () => {
  lit = null;
  if (dialog()?.open) dialog().close();
});
