/**
 * Evidence and attention, drawn over images from arrays.
 *
 * Evidence shows what a word matched: colours are unchanged inside and muted outside, with a contour in
 * the word's colour. Attention shows where a view looked, as a viridis overlay.
 *
 * @typedef {Object} Map_ values over the cells of one image
 * @property {number[]} values rows * columns numbers, 1 is the strongest
 * @property {string} colour "#rrggbb"
 */

/** Colours of up to four words; distinguishable with any colour vision. */
export const COLOURS = ["#f59f00", "#2563eb", "#d6336c", "#2f9e44"];

/** The maximum number of listed views; a method with a view for each cell has more. */
export const MAX_VIEWS = 16;

const CONTOUR = 0.38; // value of the contour
const SOFT = [0.15, 0.5]; // values between which an image changes from muted to unchanged
const SATURATION = 0.7; // of muted colours
const BRIGHTNESS = 0.88; // of muted colours
const TINT = 0.28; // opacity of the word's colour over the strongest cell
const ATTENTION = 0.45; // opacity of the attention overlay
/** The colour of bars over the frames of a clip. */
export const ATTENTION_COLOUR = "#2a9d8f";
/** The colour of evidence against words. */
export const AGAINST = "#7c3aed";
const VIRIDIS = ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725"].map(rgb);

/**
 * Draws an image with the evidence of words.
 * @param {HTMLCanvasElement} canvas its width and height in pixels are used
 * @param {CanvasImageSource} image
 * @param {Map_[]} maps one for each word
 * @param {[number, number]} grid rows and columns of cells
 * @param {number[]} box part of the image that the cells cover: left, top, right, bottom in 0..1
 * @param {{strength?: number, outline?: boolean, against?: number[]|null}} [options] strength: 0 leaves
 *   the image as it is; against: evidence against the words in 0..1, hatched
 */
export function drawEvidence(canvas, image, maps, grid, box = [0, 0, 1, 1], options = {}) {
  const { strength = 1, outline = true, against = null } = options;
  const { width, height } = canvas;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
  const fields = maps.map((map) => upsample(map.values, grid, width, height, box));
  const pixels = context.getImageData(0, 0, width, height);
  const { data } = pixels;
  const colours = maps.map((map) => rgb(map.colour));
  for (let i = 0; i < width * height; i += 1) {
    let strongest = 0;
    let which = 0;
    for (let m = 0; m < fields.length; m += 1) {
      if (fields[m][i] > strongest) {
        strongest = fields[m][i];
        which = m;
      }
    }
    const inside = smoothStep(strongest);
    const at = 4 * i;
    const grey = 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
    const saturation = 1 - (1 - SATURATION) * (1 - inside) * strength;
    const brightness = 1 - (1 - BRIGHTNESS) * (1 - inside) * strength;
    const tint = TINT * inside * Math.min(1, strongest) * strength;
    for (let c = 0; c < 3; c += 1) {
      const value = brightness * (grey + saturation * (data[at + c] - grey));
      data[at + c] = fields.length ? value + tint * (colours[which][c] - value) : data[at + c];
    }
  }
  context.putImageData(pixels, 0, 0);
  const scale = Math.max(0.6, Math.min(width, 1.5 * height) / 420); // a panorama gets no thick lines
  if (against) hatch(context, upsample(against, grid, width, height, box), width, height, scale);
  if (outline) fields.forEach((field, m) => stroke(context, contour(field, width, height), maps[m].colour, 3 * scale));
}

/**
 * Draws an image with one attention map.
 * @param {HTMLCanvasElement} canvas
 * @param {CanvasImageSource} image
 * @param {number[]} values rows * columns numbers
 * @param {[number, number]} grid
 * @param {number[]} box
 * @param {{strength?: number, outline?: boolean}} [options] strength: opacity of the overlay
 */
export function drawAttention(canvas, image, values, grid, box = [0, 0, 1, 1], options = {}) {
  const { strength = ATTENTION, outline = false } = options;
  const { width, height } = canvas;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
  const field = upsample(stretch(values), grid, width, height, box);
  if (outline) {
    stroke(context, contour(field, width, height, 0.5), "#22a884", 3);
    return;
  }
  const pixels = context.getImageData(0, 0, width, height);
  const { data } = pixels;
  for (let i = 0; i < width * height; i += 1) {
    const colour = viridis(field[i]);
    for (let c = 0; c < 3; c += 1) data[4 * i + c] += strength * (colour[c] - data[4 * i + c]);
  }
  context.putImageData(pixels, 0, 0);
}

/**
 * Draws a bar along the lower edge for each frame of a clip: how well the frame matches.
 * @param {HTMLCanvasElement} canvas
 * @param {Map_[]} maps one for each word, with values over the frames
 */
export function drawStrip(canvas, maps) {
  const { width, height } = canvas;
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  const tall = Math.round(height * 0.18);
  context.fillStyle = "rgb(0 0 0 / 45%)";
  context.fillRect(0, height - tall, width, tall);
  maps.forEach(({ values, colour }, m) => {
    const wide = width / values.length;
    context.fillStyle = colour;
    values.forEach((value, i) => {
      const bar = Math.max(1, value * (tall - 2));
      context.fillRect(i * wide + 1 + (m * wide) / maps.length, height - bar, wide / maps.length - 1, bar);
    });
  });
}

/**
 * The attention of a view as drawn; for collapsed views, its difference from the mean of all
 * views.
 * @param {any} answer of `/views`
 * @param {number} view
 * @returns {number[]|null}
 */
export function attentionOf(answer, view) {
  const own = answer.views.find((each) => each.view === view)?.attention ?? null;
  if (!own || !answer.collapsed || answer.views.length < Math.max(2, answer.similarity.length)) return own;
  const count = answer.views.length;
  return own.map((value, cell) => value - answer.views.reduce((sum, each) => sum + each.attention[cell], 0) / count);
}

/** Values stretched to 0..1. @param {number[]} values */
export function stretch(values) {
  const low = Math.min(...values);
  const range = Math.max(...values) - low || 1;
  return values.map((value) => (value - low) / range);
}

/** Draws violet diagonal lines where a field is above the contour's level. */
function hatch(context, field, width, height, scale) {
  const gap = Math.round(9 * scale);
  context.fillStyle = AGAINST;
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (field[y * width + x] > CONTOUR && (x + y) % gap < 2 * scale) context.fillRect(x, y, 1, 1);
    }
  }
}

/** Bicubic (Catmull-Rom) interpolation of cells to height * width pixels; 0 outside the box. @returns {Float32Array} */
function upsample(values, [rows, columns], width, height, [left, top, right, bottom]) {
  const across = weights(columns, width, left, right);
  const down = weights(rows, height, top, bottom);
  const half = new Float32Array(rows * width);
  for (let r = 0; r < rows; r += 1) {
    for (let x = 0; x < width; x += 1) {
      let sum = 0;
      for (const [cell, weight] of across[x]) sum += weight * values[r * columns + cell];
      half[r * width + x] = sum;
    }
  }
  const field = new Float32Array(height * width);
  for (let y = 0; y < height; y += 1) {
    for (const [cell, weight] of down[y]) {
      for (let x = 0; x < width; x += 1) field[y * width + x] += weight * half[cell * width + x];
    }
  }
  return field;
}

/** For every pixel, the cells from which it is interpolated, with weights. */
function weights(cells, pixels, low, high) {
  const result = [];
  for (let pixel = 0; pixel < pixels; pixel += 1) {
    const at = ((pixel + 0.5) / pixels - low) / (high - low || 1);
    if (at < 0 || at > 1) {
      result.push([]);
      continue;
    }
    const place = at * cells - 0.5;
    const first = Math.floor(place);
    const t = place - first;
    const kernel = [
      ((-t + 2) * t - 1) * t * 0.5,
      ((3 * t - 5) * t * t + 2) * 0.5,
      ((-3 * t + 4) * t + 1) * t * 0.5,
      (t - 1) * t * t * 0.5,
    ];
    result.push(kernel.map((weight, k) => [Math.min(cells - 1, Math.max(0, first - 1 + k)), weight]));
  }
  return result;
}

/** Draws a line with a white outline. */
function stroke(context, path, colour, width) {
  context.lineCap = "round";
  for (const [strokeStyle, lineWidth] of [["#ffffff", 2 * width], [colour, width]]) {
    Object.assign(context, { strokeStyle, lineWidth });
    context.stroke(path);
  }
}

/** Marching squares: the contour of a field at a level, closed along the image's border. */
function contour(field, width, height, level = CONTOUR) {
  const step = Math.max(1, Math.round(width / 96));
  const path = new Path2D();
  const value = (x, y) => {
    if (x <= 0 || y <= 0 || x >= width - 1 || y >= height - 1) return -1;
    return field[y * width + x] - level;
  };
  const between = (x1, y1, a, x2, y2, b) => {
    const share = a / (a - b);
    return [clamp(x1 + share * (x2 - x1), 1, width - 2), clamp(y1 + share * (y2 - y1), 1, height - 2)];
  };
  for (let y = -step; y < height + step; y += step) {
    for (let x = -step; x < width + step; x += step) {
      const [right, below] = [x + step, y + step];
      const inside = (value(x, y) > 0) + (value(right, y) > 0) + (value(right, below) > 0) + (value(x, below) > 0);
      if (inside % 4 === 0) continue; // no line crosses this square
      const places = [[x, y], [right, y], [right, below], [x, below]];
      const corners = places.map(([cx, cy]) => [cx, cy, value(cx, cy)]);
      const crossings = [];
      for (let c = 0; c < 4; c += 1) {
        const [x1, y1, a] = corners[c];
        const [x2, y2, b] = corners[(c + 1) % 4];
        if (a > 0 !== b > 0) crossings.push(between(x1, y1, a, x2, y2, b));
      }
      for (let c = 0; c + 1 < crossings.length; c += 2) {
        path.moveTo(...crossings[c]);
        path.lineTo(...crossings[c + 1]);
      }
    }
  }
  return path;
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function smoothStep(value) {
  const t = clamp((value - SOFT[0]) / (SOFT[1] - SOFT[0]), 0, 1);
  return t * t * (3 - 2 * t);
}

function rgb(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

/** Colour of a value in 0..1. @param {number} value @returns {number[]} red, green, blue */
export function viridis(value) {
  const place = clamp(value, 0, 1) * (VIRIDIS.length - 1);
  const first = Math.min(VIRIDIS.length - 2, Math.floor(place));
  const t = place - first;
  return VIRIDIS[first].map((part, c) => part + t * (VIRIDIS[first + 1][c] - part));
}
