// Evidence, as several tabs show it: words are buttons, tinted by what they add, and images are lit
// where that comes from. Each tab's script follows, and says what to draw by `listen`.
const DARK = [10, 12, 20], AGAINST = [213, 94, 0], SHADE = 0.66; // as the maps of the server have them
const ALL = 0; // the map of all words; those of single words follow
let over = null, kept = null;
const drawn = new WeakMap(); // of one image: map -> canvas of one pixel a cell

const words = () => [...element.querySelectorAll(".pv-ev-word")];
const chosen = () => over ?? kept ?? ALL;
const letGo = () => { over = kept = null; };

const valuesOf = ({ scale, cells }, grid, place) => {
  const bytes = Uint8Array.from(atob(cells), (sign) => sign.charCodeAt(0));
  const size = grid[0] * grid[1], sum = new Float32Array(size);
  new Int8Array(bytes.buffer).forEach((value, i) => {
    if (place === ALL || Math.floor(i / size) === place - 1) sum[i % size] += value * scale;
  });
  return sum;
};

const pixelsOf = (values, grid, colour) => {
  const canvas = document.createElement("canvas");
  [canvas.height, canvas.width] = grid;
  const pen = canvas.getContext("2d"), pixels = pen.createImageData(canvas.width, canvas.height);
  values.forEach((value, i) => pixels.data.set(colour(value), 4 * i));
  pen.putImageData(pixels, 0, 0);
  return canvas;
};

// A cell: shaded where nothing speaks for the words, orange where something speaks against them.
const cellsOf = (image, grid, tops, place) => {
  tops = image.tops ?? tops; // of a question with a picture, those of each image
  if (!drawn.has(image)) drawn.set(image, new Map());
  const maps = drawn.get(image);
  if (!maps.has(place)) maps.set(place, pixelsOf(valuesOf(image, grid, place), grid, (value) => {
    const strength = Math.max(-1, Math.min(1, value / tops[place]));
    const against = Math.max(-strength, 0), lit = Math.max(strength, 0);
    return [...DARK.map((dark, part) => dark + (AGAINST[part] - dark) * against), 255 * SHADE * (1 - lit)];
  }));
  return maps.get(place);
};

const paint = (canvas, width, height, image, { grid, tops, time }, place) => {
  [canvas.width, canvas.height] = [width, height];
  const [left, top, right, bottom] = image.box, pen = canvas.getContext("2d");
  const seen = [left * width, top * height, (right - left) * width, (bottom - top) * height];
  pen.fillStyle = `rgb(${DARK.join(" ")} / ${SHADE})`;
  pen.fillRect(0, 0, width, height);
  pen.clearRect(...seen);
  pen.imageSmoothingEnabled = !time; // frames of a clip end where they do
  pen.imageSmoothingQuality = "high";
  pen.drawImage(cellsOf(image, grid, tops, place), ...seen);
};

// Lights an <img>; `again` is called once it is there, if it is not yet.
const light = (shown, image, split, place, again) => {
  if (!shown.naturalWidth) return shown.addEventListener("load", again, { once: true });
  let canvas = shown.parentElement.querySelector(".pv-ev-map");
  if (!canvas) {
    canvas = document.createElement("canvas");
    canvas.className = "pv-ev-map";
    shown.after(canvas);
  }
  paint(canvas, shown.naturalWidth, shown.naturalHeight, image, split, place);
};

const signed = (value) => `${value < 0 ? "takes" : "adds"} ${Math.abs(value).toFixed(3)}`;
const capital = (sentence) => sentence[0].toUpperCase() + sentence.slice(1);
const mostly = (spot) => (spot === "nowhere" ? "" : `, mostly from ${spot}`);

// Tints a word by its share, -1 to 1, of what the word that brings most does.
const tint = (word, share, title) => {
  word.style.setProperty("--share", `${Math.round(55 * Math.abs(share))}%`);
  word.style.setProperty("--lit", Math.max(share, 0).toFixed(3));
  word.classList.toggle("pv-ev-against", share < 0);
  word.title = title;
  word.setAttribute("aria-pressed", String(Number(word.dataset.column) === kept));
};

// Whether something that is not ours came or went: what was lit may be gone.
const changed = (records) => records.some((record) =>
  [...record.addedNodes, ...record.removedNodes].some((node) => !node.classList?.contains("pv-ev-map")));

// Calls `show` whenever another word is pointed at, moved to or kept.
const listen = (show) => {
  const columnOf = (event) => {
    const word = event.target.closest?.(".pv-ev-word");
    return word ? Number(word.dataset.column) : null;
  };
  const point = (column) => {
    over = column;
    show();
  };
  element.addEventListener("pointerover", (event) => event.pointerType === "mouse" && point(columnOf(event)));
  element.addEventListener("pointerleave", () => point(null));
  element.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && point(columnOf(event)));
  element.addEventListener("focusout", () => point(null));
  element.addEventListener("click", (event) => {
    const column = columnOf(event);
    if (column === null) return;
    kept = kept === column ? null : column;
    point(event.detail ? null : column);
  });
  element.addEventListener("keydown", (event) => {
    const all = words(), here = all.indexOf(event.target);
    if (here < 0) return;
    const row = Number(event.target.dataset.row ?? 0); // cells of a row, of a picture asked with
    const next = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + row, ArrowUp: here - row,
      Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Escape" && kept !== null) {
      event.preventDefault();
      kept = null;
      point(null);
    } else if (all[next] && next !== here) {
      event.preventDefault();
      for (const word of all) word.tabIndex = word === all[next] ? 0 : -1;
      all[next].focus();
    }
  });
};
