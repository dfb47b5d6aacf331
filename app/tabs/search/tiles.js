// The results: a click opens a picture; arrow keys move between pictures as they lie on the page.
const tiles = () => [...element.querySelectorAll(".pv-tile")];

const columns = (all) => {
  const next = all.findIndex((tile) => tile.offsetTop > all[0].offsetTop);
  return next < 0 ? all.length : next;
};

const focus = (tile) => {
  for (const other of tiles()) other.tabIndex = other === tile ? 0 : -1;
  tile.focus();
};

element.addEventListener("click", (event) => {
  const tile = event.target.closest(".pv-tile");
  if (!tile) return;
  for (const other of tiles()) other.toggleAttribute("aria-current", other === tile);
  focus(tile);
  choose(Number(tile.dataset.picture));
});

element.addEventListener("keydown", (event) => {
  const all = tiles();
  const here = all.indexOf(event.target.closest(".pv-tile"));
  if (here < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const wide = columns(all);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide,
    Home: -here, End: all.length - 1 - here };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const there = here + steps[event.key];
  if (there >= 0 && there < all.length) focus(all[there]);
  else if (event.key === "ArrowUp") document.querySelector("#pv-words :is(textarea, input)")?.focus();
});

// From the question down into its answer.
document.addEventListener("keydown", (event) => {
  if (event.key !== "ArrowDown" || !event.target.closest?.("#pv-words")) return;
  const first = tiles()[0];
  if (!first) return;
  event.preventDefault();
  focus(first);
});
