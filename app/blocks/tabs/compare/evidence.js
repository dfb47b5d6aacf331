// Maps inside: every column's pictures, lit by the evidence of that column's own method.
const KEY = "pv-cmp-evidence"; // "on" or "off", as last chosen
let facts = null, pointed = null; // the picture that is pointed at, by its file

const tiles = () => [...document.querySelectorAll("#pv-cmp-results .pv-cmp-grid .pv-cmp-tile[data-id]")];
const box = () => element.querySelector(".pv-ev-show input");

// A column's own frame of a picture, or its first picture.
const hitAt = (column, file) => {
  const own = tiles().filter((tile) => Number(tile.dataset.column) === column.column);
  return column.hits[own.find((tile) => file === null || tile.dataset.file === file)?.dataset.id];
};
// The hit of a column that the words are tinted for: the picture pointed at, else its first.
const hitOf = (column) => hitAt(column, pointed) ?? hitAt(column, null);

const say = (button) => {
  const said = element.querySelector(".pv-ev-said");
  said.replaceChildren(`${capital(facts.names[button])} ${pointed === null ? "at rank 1" : "in this picture"}: `);
  for (const column of facts.columns) {
    const hit = hitAt(column, pointed), place = column.at[button];
    if (!hit || place === null) continue;
    const part = document.createElement("span");
    part.textContent = `${column.title} ${signed(hit.sums[place])} of ${hit.score.toFixed(3)}`
      + `${mostly(hit.where[place]).replace("mostly from ", "")};`;
    said.append(part, " ");
  }
};

function draw() {
  if (!facts) return;
  const button = chosen(), on = localStorage.getItem(KEY) === "on" || button !== ALL;
  const columns = new Map(facts.columns.map((column) => [column.column, column]));
  for (const tile of tiles()) {
    const column = columns.get(Number(tile.dataset.column)), hit = column?.hits[tile.dataset.id];
    const place = column?.at[button] ?? null, image = tile.querySelector("img");
    if (on && hit && image && place !== null) light(image, hit, column, place, draw);
    else tile.querySelector(".pv-ev-map")?.remove();
  }
  // A word is tinted by what it brings on average, where 1 is what most does in a column.
  const shares = new Float32Array(facts.names.length), titles = facts.names.map(() => []);
  for (const column of facts.columns) {
    const hit = hitOf(column);
    if (!hit) continue;
    const most = Math.max(...hit.sums.slice(1).map(Math.abs), 1e-9);
    column.at.forEach((place, i) => {
      if (place === null) return;
      shares[i] += hit.sums[place] / most / facts.columns.length;
      titles[i].push(`${column.title} ${signed(hit.sums[place])}`);
    });
  }
  for (const word of words()) {
    const i = Number(word.dataset.column);
    tint(word, Math.max(-1, Math.min(1, shares[i])), titles[i].join(", "));
  }
  if (facts.columns.length) say(button);
}

listen(draw);
element.addEventListener("change", (event) => {
  if (event.target !== box()) return;
  localStorage.setItem(KEY, event.target.checked ? "on" : "off");
  draw();
});

const results = document.querySelector("#pv-cmp-results");
const point = (event) => {
  const file = event.target.closest?.(".pv-cmp-tile[data-id]")?.dataset.file ?? null;
  if (file === pointed) return;
  pointed = file;
  draw();
};
results.addEventListener("pointermove", (event) => event.pointerType === "mouse" && point(event));
results.addEventListener("pointerleave", point);
results.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && point(event));

const read = () => {
  const frame = element.querySelector(".pv-ev");
  facts = frame ? JSON.parse(frame.dataset.evidence) : null;
  pointed = null;
  letGo();
  if (box()) box().checked = localStorage.getItem(KEY) === "on";
  draw();
};

watch("value", read);
new MutationObserver((records) => changed(records) && draw())
  .observe(results, { childList: true, subtree: true });
