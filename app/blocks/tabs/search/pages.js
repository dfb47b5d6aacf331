// Further images of an answer come as the visitor scrolls, and images that look nearly the same are
// folded under the first of them.
const grid = document.querySelector("#pv-grid");
const all = (what) => [...grid.querySelectorAll(what)];

const toggle = (button) => {
  const shown = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", shown);
  for (const item of all(`.pv-item[data-alike="${button.dataset.of}"]`)) item.hidden = !shown;
};

const fold = () => {
  const counts = new Map();
  for (const item of all(".pv-item[data-alike]"))
    counts.set(item.dataset.alike, (counts.get(item.dataset.alike) ?? 0) + 1);
  for (const [of, count] of counts) {
    const first = grid.querySelector(`.pv-tile[data-picture="${of}"]`);
    if (!first) continue;
    let button = first.parentElement.querySelector(".pv-fold");
    if (!button) {
      button = document.createElement("button");
      Object.assign(button, { type: "button", className: "pv-fold", tabIndex: -1 });
      button.dataset.of = of;
      button.setAttribute("aria-expanded", "false");
      first.after(button);
    }
    const words = `${count} more that ${count === 1 ? "looks" : "look"} nearly the same`;
    if (button.ariaLabel === words) continue;
    button.textContent = `+${count}`;
    button.ariaLabel = button.title = words;
  }
};

let asked = null; // the button that was used up
const more = (button) => {
  if (button === asked) return;
  asked = button;
  button.textContent = "One moment …";
  trigger("more", {});
};
const near = new IntersectionObserver(
  (seen) => { for (const { isIntersecting, target } of seen) if (isIntersecting) more(target); },
  { rootMargin: "600px" });

grid.addEventListener("click", (event) => {
  const button = event.target.closest(".pv-fold, .pv-further");
  if (button?.matches(".pv-fold")) toggle(button);
  else if (button) more(button);
});

const look = () => {
  fold();
  for (const button of all(".pv-further")) near.observe(button);
};
new MutationObserver(look).observe(grid, { childList: true, subtree: true });
look();

watch("value", () => {
  const page = document.createElement("template");
  page.innerHTML = props.value;
  const to = grid.querySelector(".pv-tiles"), from = page.content.querySelector(".pv-tiles");
  const last = grid.querySelector(".pv-further");
  last?.remove();
  if (!from || !to) return;
  const there = new Set(all(".pv-tile").map((tile) => tile.dataset.picture));
  for (const item of [...from.children]) {
    const tile = item.querySelector(".pv-tile");
    if (tile && there.has(tile.dataset.picture)) continue;
    if (tile) tile.tabIndex = -1;
    to.append(item);
  }
  const { evidence } = from.dataset;
  if (!evidence) return;
  const further = JSON.parse(evidence);
  const before = to.pvEvidence?.of === further.of ? to.pvEvidence.hits : {}; // that of the first may yet come
  to.pvEvidence = { ...further, hits: { ...before, ...further.hits } };
  document.dispatchEvent(new Event("pv-more"));
});
