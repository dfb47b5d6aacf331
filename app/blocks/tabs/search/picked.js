// Several images are picked, to be saved or asked with: by "Select", or with Ctrl and a click.
const grid = document.querySelector("#pv-grid"), bar = document.querySelector("#pv-picked");
const picked = () => [...grid.querySelectorAll('.pv-tile[aria-pressed="true"]')];
let picking = false;

const ids = () => picked().map((tile) => Number(tile.dataset.picture));
const tell = () => {
  const count = picked().length;
  props.value = ids();
  grid.classList.toggle("pv-picking", picking || count > 0);
  bar.classList.toggle("pv-some", count > 0);
  button.textContent = count ? `Clear (${count})` : picking ? "Done" : "Select";
};

const clear = () => {
  picking = false;
  for (const tile of grid.querySelectorAll(".pv-tile[aria-pressed]")) tile.removeAttribute("aria-pressed");
  tell();
};

const button = document.createElement("button");
Object.assign(button, { type: "button", className: "pv-pick", title: "Select several pictures (or Ctrl and click)" });
button.addEventListener("click", () => {
  if (picking || picked().length) return clear();
  picking = true;
  tell();
});
bar.prepend(button);
tell();

// Before the click that would open the image.
grid.addEventListener("click", (event) => {
  const tile = event.target.closest(".pv-tile");
  if (!tile || !(picking || event.ctrlKey || event.metaKey)) return;
  event.stopPropagation();
  tile.setAttribute("aria-pressed", tile.getAttribute("aria-pressed") !== "true");
  tell();
}, { capture: true });

// Another answer has other images.
new MutationObserver(() => String(props.value) !== String(ids()) && clear())
  .observe(grid, { childList: true, subtree: true });
