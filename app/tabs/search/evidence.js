// Evidence: words are tinted by what they add to a hit, and images are lit where that comes from.
const KEY = "pv-evidence"; // "on" or "off", as last chosen; unset, the first row is lit
const DARK = [10, 12, 20], AGAINST = [213, 94, 0], SHADE = 0.66; // as the maps of the server have them
const ALL = 0; // the map of all words; those of single words follow
let facts = null, pointed = null, over = null, kept = null;
const drawn = new Map(); // hit and map -> canvas of one pixel a cell

const tiles = () => [...document.querySelectorAll("#pv-grid .pv-tile")];
const words = () => [...element.querySelectorAll(".pv-ev-word")];
const box = () => element.querySelector(".pv-ev-show input");
const chosen = () => over ?? kept ?? ALL;
const idOf = (tile) => tile?.dataset.picture;

// Which hit the words are tinted for: the one pointed at, else the open one, else the first.
const inFocus = () => {
  const open = document.querySelector("#pv-grid .pv-tile[aria-current]");
  return [pointed, idOf(open), ...tiles().map(idOf)].find((id) => id && facts.hits[id]);
};

const values = (id, column) => {
  const { scale, cells } = facts.hits[id];
  const bytes = Uint8Array.from(atob(cells), (sign) => sign.charCodeAt(0));
  const size = facts.grid[0] * facts.grid[1], sum = new Float32Array(size);
  new Int8Array(bytes.buffer).forEach((value, i) => {
    if (column === ALL || Math.floor(i / size) === column - 1) sum[i % size] += value * scale;
  });
  return sum;
};

// A cell: shaded where nothing speaks for the words, orange where something speaks against them.
const cellsOf = (id, column) => {
  const name = `${id} ${column}`;
  if (drawn.has(name)) return drawn.get(name);
  const [rows, columns] = facts.grid, canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const pen = canvas.getContext("2d"), pixels = pen.createImageData(columns, rows);
  values(id, column).forEach((value, i) => {
    const strength = Math.max(-1, Math.min(1, value / facts.tops[column]));
    const against = Math.max(-strength, 0), lit = Math.max(strength, 0);
    const colour = DARK.map((dark, part) => dark + (AGAINST[part] - dark) * against);
    pixels.data.set([...colour, 255 * SHADE * (1 - lit)], 4 * i);
  });
  pen.putImageData(pixels, 0, 0);
  drawn.set(name, canvas);
  return canvas;
};

const light = (tile, column) => {
  const image = tile.querySelector("img"), id = idOf(tile);
  let canvas = tile.querySelector(".pv-ev-map");
  if (!canvas) {
    canvas = document.createElement("canvas");
    canvas.className = "pv-ev-map";
    image.after(canvas);
  }
  const width = image.naturalWidth, height = image.naturalHeight;
  if (!width) return image.addEventListener("load", draw, { once: true });
  [canvas.width, canvas.height] = [width, height];
  const [left, top, right, bottom] = facts.hits[id].box, pen = canvas.getContext("2d");
  const seen = [left * width, top * height, (right - left) * width, (bottom - top) * height];
  pen.fillStyle = `rgb(${DARK.join(" ")} / ${SHADE})`;
  pen.fillRect(0, 0, width, height);
  pen.clearRect(...seen);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(cellsOf(id, column), ...seen);
};

const signed = (value) => `${value < 0 ? "takes" : "adds"} ${Math.abs(value).toFixed(3)}`;

const say = (id, column) => {
  const { score, sums, where } = facts.hits[id];
  const rank = tiles().findIndex((tile) => idOf(tile) === id) + 1;
  const name = column === ALL ? "The words together" : `“${facts.names[column]}”`;
  const adds = column === ALL ? `add ${sums[ALL].toFixed(3)}` : signed(sums[column]);
  const far = where[column] === "nowhere" ? "" : `, mostly from ${where[column]}`;
  element.querySelector(".pv-ev-said").textContent =
    `${name} ${adds} of picture ${rank}’s score ${score.toFixed(3)}${far}.`;
};

function draw() {
  if (!facts) return;
  const id = inFocus(), column = chosen(), all = tiles(), wish = localStorage.getItem(KEY);
  const row = all.filter((tile) => tile.offsetTop === all[0].offsetTop);
  for (const tile of all) {
    const wanted = column !== ALL || idOf(tile) === pointed
      || (wish === "on" || (!wish && row.includes(tile)));
    if (wanted && facts.hits[idOf(tile)]) light(tile, column);
    else tile.querySelector(".pv-ev-map")?.remove();
  }
  if (!id) return;
  const sums = facts.hits[id].sums, most = Math.max(...sums.slice(1).map(Math.abs), 1e-9);
  for (const word of words()) {
    const sum = sums[word.dataset.column];
    word.style.setProperty("--share", `${Math.round(55 * Math.abs(sum) / most)}%`);
    word.classList.toggle("pv-ev-against", sum < 0);
    word.title = `${signed(sum)} of ${facts.hits[id].score.toFixed(3)}`;
    word.setAttribute("aria-pressed", String(Number(word.dataset.column) === kept));
  }
  const { rest } = facts.hits[id];
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

const show = (column) => {
  over = column;
  draw();
  follow();
};

const columnOf = (event) => {
  const word = event.target.closest?.(".pv-ev-word");
  return word ? Number(word.dataset.column) : null;
};

element.addEventListener("pointerover", (event) => event.pointerType === "mouse" && show(columnOf(event)));
element.addEventListener("pointerleave", () => show(null));
element.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && show(columnOf(event)));
element.addEventListener("focusout", () => show(null));
element.addEventListener("click", (event) => {
  const column = columnOf(event);
  if (column === null) return;
  kept = kept === column ? null : column;
  show(event.detail ? null : column);
});
element.addEventListener("change", (event) => {
  if (event.target !== box()) return;
  localStorage.setItem(KEY, event.target.checked ? "on" : "off");
  draw();
});
element.addEventListener("keydown", (event) => {
  const all = words(), here = all.indexOf(event.target);
  if (here < 0) return;
  const next = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 }[event.key];
  if (event.key === "Escape" && kept !== null) {
    event.preventDefault();
    kept = null;
    show(null);
  } else if (all[next]) {
    event.preventDefault();
    for (const word of all) word.tabIndex = word === all[next] ? 0 : -1;
    all[next].focus();
  }
});

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

const read = () => {
  const frame = element.querySelector(".pv-ev");
  facts = frame ? JSON.parse(frame.dataset.evidence) : null;
  pointed = over = kept = null;
  drawn.clear();
  if (box()) box().checked = localStorage.getItem(KEY) !== "off";
  for (const map of document.querySelectorAll("#pv-grid .pv-ev-map")) map.remove();
  draw();
};

watch("value", read);
new MutationObserver((changes) => {
  const ours = (node) => node.classList?.contains("pv-ev-map");
  if (changes.some((change) => [...change.addedNodes, ...change.removedNodes].some((n) => !ours(n)))) draw();
}).observe(document.querySelector("#pv-grid"), { childList: true, subtree: true });
new ResizeObserver(() => draw()).observe(element);
