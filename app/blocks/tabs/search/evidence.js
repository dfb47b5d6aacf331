// Evidence of the hits: of the first row unless "Show evidence" says otherwise.
const KEY = "pv-evidence"; // "on" or "off", as last chosen; unset, the first row is lit
const FOUND = [255, 222, 60]; // yellow
let facts = null, pointed = null;

const tiles = () => [...document.querySelectorAll("#pv-grid .pv-item:not([hidden]) > .pv-tile")];
const box = () => element.querySelector(".pv-ev-show input");
const idOf = (tile) => tile?.dataset.picture;

// Which hit the words are tinted for: the one pointed at, else the open one, else the first.
const inFocus = () => {
  const open = document.querySelector("#pv-grid .pv-tile[aria-current]");
  return [pointed, idOf(open), ...tiles().map(idOf)].find((id) => id && facts.hits[id]);
};

const say = (id, column) => {
  const { score, sums, where } = facts.hits[id];
  const rank = [...document.querySelectorAll("#pv-grid .pv-tile")].findIndex((tile) => idOf(tile) === id) + 1;
  const adds = facts.names[column] === "the words together" ? signed(sums[ALL]).replace("s ", " ") : signed(sums[column]);
  element.querySelector(".pv-ev-said").textContent =
    `${capital(facts.names[column])} ${adds} of picture ${rank}’s score ${score.toFixed(3)}${mostly(where[column])}.`;
};

// Of a clip whose frames are read as a set: a strip over time, yellow where the words are found.
const strip = (image, hit, column) => {
  if (!hit.frames) return; // a still picture
  let canvas = image.parentElement.querySelector(".pv-ev-map");
  if (!canvas) {
    canvas = document.createElement("canvas");
    canvas.className = "pv-ev-map pv-ev-strip";
    image.after(canvas);
  }
  const cells = pixelsOf(valuesOf(hit, facts.grid, column), facts.grid, (value) => {
    const strength = Math.min(1, Math.abs(value) / (hit.tops ?? facts.tops)[column]);
    return [...DARK.map((dark, part) => dark + ((value < 0 ? AGAINST : FOUND)[part] - dark) * strength), 255];
  });
  [canvas.width, canvas.height] = [hit.frames, 1];
  canvas.getContext("2d").drawImage(cells, 0, 0);
};

function draw() {
  if (!facts) return;
  const id = inFocus(), column = chosen(), all = tiles(), wish = localStorage.getItem(KEY);
  const row = all.filter((tile) => tile.parentElement.offsetTop === all[0].parentElement.offsetTop);
  for (const tile of all) {
    const wanted = column !== ALL || idOf(tile) === pointed
      || (wish === "on" || (!wish && row.includes(tile)));
    const hit = facts.hits[idOf(tile)];
    if (wanted && hit && facts.time) strip(tile.querySelector("img"), hit, column);
    else if (wanted && hit) light(tile.querySelector("img"), hit, facts, column, draw);
    else tile.querySelector(".pv-ev-map")?.remove();
  }
  if (!id) return;
  const { sums, score, rest } = facts.hits[id];
  for (const cells of [false, true]) { // of a picture asked with, or words
    const group = words().filter((word) => "row" in word.dataset === cells);
    const most = Math.max(...group.map((word) => Math.abs(sums[word.dataset.column])), 1e-9);
    for (const word of group) {
      const sum = sums[word.dataset.column];
      tint(word, sum / most, `${signed(sum)} of ${score.toFixed(3)}`);
    }
  }
  element.querySelector(".pv-ev-rest").textContent =
    Math.abs(rest) < 0.0005 ? "" : `${rest < 0 ? "−" : "+"} ${Math.abs(rest).toFixed(3)} from no part`;
  say(id, column);
}

// The open image follows a moment later: it is drawn by the server.
let later = 0;
const follow = () => {
  clearTimeout(later);
  later = setTimeout(() => {
    const layer = document.querySelector(`#pv-layers input[value="evidence:${chosen()}"]`);
    if (layer && !layer.checked) layer.click();
  }, 150);
};

listen(() => {
  draw();
  follow();
});
element.addEventListener("change", (event) => {
  if (event.target !== box()) return;
  localStorage.setItem(KEY, event.target.checked ? "on" : "off");
  draw();
});

// Pointing into the open image tells what is brought by the cell that is there.
const spot = document.createElement("div");
Object.assign(spot, { className: "pv-ev-spot", hidden: true });
document.body.append(spot);
const measure = (event) => {
  spot.hidden = true;
  const shown = event.target.closest?.("#pv-map")?.querySelector("img");
  const layer = document.querySelector("#pv-layers input:checked")?.value.match(/^evidence:(\d+)$/);
  const hit = facts?.hits[idOf(document.querySelector("#pv-grid .pv-tile[aria-current]"))];
  if (!shown || !layer || !hit || facts.time || document.querySelector("#pv-clip [data-other]")) return;
  const frame = shown.getBoundingClientRect(), [rows, columns] = facts.grid, [left, top, right, bottom] = hit.box;
  const scale = Math.min(frame.width / shown.naturalWidth, frame.height / shown.naturalHeight);
  const x = (event.clientX - frame.left - frame.width / 2) / (scale * shown.naturalWidth) + 0.5;
  const y = (event.clientY - frame.top - frame.height / 2) / (scale * shown.naturalHeight) + 0.5;
  const column = Math.floor((x - left) / (right - left) * columns), row = Math.floor((y - top) / (bottom - top) * rows);
  if (Math.min(column, row) < 0 || column >= columns || row >= rows) return;
  const value = valuesOf(hit, facts.grid, Number(layer[1]))[row * columns + column];
  spot.textContent = `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(3)} of ${hit.score.toFixed(3)} from here`;
  spot.hidden = false;
  spot.style.left = `${Math.min(event.clientX + 14, innerWidth - spot.offsetWidth - 4)}px`;
  spot.style.top = `${event.clientY + 18}px`;
};
for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, measure);
document.addEventListener("scroll", () => { spot.hidden = true; }, { capture: true, passive: true });

const point = (id) => {
  if (pointed === id) return;
  pointed = id;
  draw();
};
document.addEventListener("pointerover", (event) => {
  if (event.pointerType !== "mouse" || !facts) return;
  point(idOf(event.target.closest?.("#pv-grid .pv-tile")) ?? null);
});
document.addEventListener("focusin", (event) => {
  const tile = event.target.closest?.("#pv-grid .pv-tile");
  if (facts && (!tile || tile.matches(":focus-visible"))) point(idOf(tile) ?? null);
});

// Images that came as the visitor scrolled bring their own; the grid may still be an earlier question's.
const further = () => {
  const came = document.querySelector("#pv-grid .pv-tiles")?.pvEvidence;
  if (facts && came?.of === facts.of) Object.assign(facts.hits, came.hits);
};

const read = () => {
  const frame = element.querySelector(".pv-ev");
  facts = frame ? JSON.parse(frame.dataset.evidence) : null;
  further();
  pointed = null;
  letGo();
  if (box()) box().checked = localStorage.getItem(KEY) !== "off";
  for (const map of document.querySelectorAll("#pv-grid .pv-ev-map")) map.remove();
  draw();
};

watch("value", read);
document.addEventListener("pv-more", () => {
  further();
  draw();
});
new MutationObserver((records) => changed(records) && draw())
  .observe(document.querySelector("#pv-grid"), { childList: true, subtree: true });
new ResizeObserver(() => draw()).observe(element);
