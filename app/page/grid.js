/**
 * The results: justified rows of tiles with true proportions. Only tiles near the window load their
 * image; near-duplicates are hidden behind the first one.
 *
 * @typedef {Object} GridOptions
 * @property {(id: number) => string} address of a thumbnail
 * @property {(hit: any, event: MouseEvent) => void} choose called when a tile is chosen
 * @property {(hit: any) => string} confidence "sure", "likely" or empty
 * @property {() => void} more called near the end of the results
 * @property {() => void} appear called when tiles scroll into view
 */

import { el, nearest } from "./dom.js";
import { state } from "./state.js";

const GAP = 8;
const ROW = 190; // height of a row on a wide screen
const ROW_NARROW = 172;
const EAGER = 16; // images that load before the layout
const MAX_WIDTH = 1600; // of a canvas over a tile, in pixels

export class Grid {
  /** @param {HTMLElement} container @param {GridOptions} options */
  constructor(container, options) {
    this.container = container;
    this.options = options;
    /** @type {Map<number, HTMLElement>} */
    this.tiles = new Map();
    /** The hits that have tiles, best first. @type {any[]} */
    this.hits = [];
    /** Near-duplicates by the rank of the first. @type {Map<number, any[]>} */
    this.alike = new Map();
    /** Ranks whose near-duplicates are shown. @type {Set<number>} */
    this.unfolded = new Set();
    /** Ids of the tiles in or near the window. @type {Set<number>} */
    this.visible = new Set();
    container.classList.add("grid");
    this.seen = new IntersectionObserver((entries) => this.#appear(entries), { rootMargin: "400px" });
    this.resized = new ResizeObserver(() => this.#layout());
    this.resized.observe(container);
  }

  /** Shows hits and reuses existing tiles. @param {any[]} hits */
  show(hits) {
    this.all = hits;
    this.alike.clear();
    for (const hit of hits) if (hit.alike) this.alike.set(hit.alike, [...(this.alike.get(hit.alike) ?? []), hit]);
    const shown = (hit) => (this.unfolded.has(hit.rank) ? [hit, ...(this.alike.get(hit.rank) ?? [])] : [hit]);
    this.hits = hits.filter((hit) => !hit.alike).flatMap(shown);
    const ids = new Set(this.hits.map((hit) => hit.image_id));
    for (const [id, tile] of this.tiles) {
      if (ids.has(id)) continue;
      this.seen.unobserve(tile);
      tile.remove();
      this.tiles.delete(id);
      this.visible.delete(id);
    }
    this.hits.forEach((hit, place) => {
      const tile = this.tiles.get(hit.image_id) ?? this.#tile(hit);
      this.tiles.set(hit.image_id, tile);
      this.#describe(tile, hit);
      if (place < EAGER) this.#load(tile, hit.image_id);
      if (this.container.children[place] !== tile) {
        this.container.insertBefore(tile, this.container.children[place] ?? null);
      }
      this.seen.observe(tile);
    });
    this.width = 0;
    this.#layout();
  }

  /** Shows or hides the near-duplicates of the hit with a rank. @param {number} rank */
  unfold(rank) {
    if (!this.unfolded.delete(rank)) this.unfolded.add(rank);
    this.show(this.all);
  }

  /** Marks the selected tile. @param {number|null} id */
  select(id) {
    for (const [key, tile] of this.tiles) {
      tile.toggleAttribute("data-selected", key === id);
      tile.setAttribute("aria-pressed", String(key === id));
    }
  }

  /** Marks tiles that are chosen for export. @param {Set<number>} ids */
  mark(ids) {
    for (const [id, tile] of this.tiles) tile.toggleAttribute("data-marked", ids.has(id));
  }

  /** The nearest hit in the row above or below. @param {number} id @param {string} key @returns {number|undefined} */
  neighbour(id, key) {
    const own = this.tiles.get(id);
    const tile = own && nearest(own, this.tiles.values(), key);
    return tile ? Number(tile.dataset.id) : undefined;
  }

  /** Waits for the images of visible tiles. */
  async images() {
    const decode = (id) => this.tiles.get(id)?.querySelector("img[src]")?.decode().catch(() => {});
    await Promise.all([...this.visible].map(decode));
  }

  /** Removes the evidence from all tiles. */
  clear() {
    for (const canvas of this.container.querySelectorAll("canvas")) canvas.remove();
  }

  destroy() {
    this.seen.disconnect();
    this.resized.disconnect();
  }

  /** The current hit of an image. @param {number} id */
  current(id) {
    return this.hits.find((hit) => hit.image_id === id);
  }

  #tile(hit) {
    const id = hit.image_id;
    const choose = (event) => {
      const now = this.current(id);
      if (event.target.matches(".badge[data-alike]")) this.unfold(now.rank);
      else this.options.choose(now, event);
    };
    const image = el("img", { alt: "", draggable: false });
    return el("button.tile", { type: "button", "data-id": id, onclick: choose }, image, el("span.rank"), el("span.badge"));
  }

  #describe(tile, hit) {
    const caption = captionOf(hit, state().q);
    const same = this.alike.get(hit.rank)?.length ?? 0;
    const confidence = this.options.confidence(hit);
    const label = [`${hit.rank}: ${caption}`, hit.satisfies && "a known answer", confidence];
    if (same) label.push(`${same} nearly the same`);
    if (hit.alike) label.push(`nearly the same as ${hit.alike}`);
    tile.setAttribute("aria-label", label.filter(Boolean).join(", "));
    tile.title = `${caption}\nscore ${hit.score.toFixed(3)}`;
    tile.querySelector(".rank").textContent = [hit.rank, confidence].filter(Boolean).join(" ");
    tile.toggleAttribute("data-right", Boolean(hit.satisfies));
    tile.toggleAttribute("data-alike", Boolean(hit.alike));
    const badge = tile.querySelector(".badge");
    const moment = hit.seconds === null || hit.seconds === undefined ? "" : clock(hit.seconds);
    const folded = same && `${this.unfolded.has(hit.rank) ? "−" : "+"}${same} alike`;
    badge.textContent = [moment, folded].filter(Boolean).join(" · ");
    badge.toggleAttribute("data-alike", same > 0);
    badge.hidden = !badge.textContent;
  }

  #load(tile, id) {
    const image = tile.querySelector("img");
    if (!image.getAttribute("src")) image.src = this.options.address(id);
  }

  #appear(entries) {
    let appeared = false;
    for (const { target, isIntersecting } of entries) {
      const id = Number(/** @type {HTMLElement} */ (target).dataset.id);
      const hit = this.current(id);
      if (isIntersecting) this.visible.add(id);
      else this.visible.delete(id);
      if (!hit || !isIntersecting) continue;
      this.#load(target, id);
      appeared = true;
      if (hit === this.hits.at(-1)) this.options.more();
    }
    if (appeared) this.options.appear();
  }

  #layout() {
    const width = Math.floor(this.container.getBoundingClientRect().width) - 1; // rounding must not wrap a row
    if (width <= 0 || width === this.width) return;
    this.width = width;
    const tiles = this.hits.map((hit) => ({ element: this.tiles.get(hit.image_id), hit }));
    justify(tiles, width, width < 560 ? ROW_NARROW : ROW);
  }
}

/**
 * Sizes tiles to fill rows: proportions are kept, and a row has one height, close to `height`.
 * @param {{element: any, hit: {width?: number|null, height?: number|null}}[]} tiles
 * @param {number} width of the rows in pixels
 * @param {number} height target height of a row in pixels
 */
export function justify(tiles, width, height) {
  let row = [];
  let ratios = 0;
  const fit = (count, sum) => (width - GAP * (count - 1)) / sum; // height of a full row
  const flush = (tall) => {
    for (const [element, ratio] of row) {
      element.style.width = `${Math.floor(tall * ratio * 100) / 100}px`;
      element.style.height = `${tall}px`;
    }
    row = [];
    ratios = 0;
  };
  for (const { element, hit } of tiles) {
    const ratio = Math.min(3, Math.max(0.4, (hit.width || 1) / (hit.height || 1)));
    const [before, after] = [fit(row.length, ratios), fit(row.length + 1, ratios + ratio)];
    if (row.length && before * after < height * height) flush(before); // closer to the target without this tile
    row.push([element, ratio]);
    ratios += ratio;
  }
  if (row.length) flush(Math.min(height, fit(row.length, ratios)));
}

/** The query if it is a caption of the image, else its first caption, else its file name. @param {any} hit @param {string} q */
export const captionOf = ({ captions = [], file }, q) =>
  captions.find((caption) => caption === q) ?? captions[0] ?? file.split("/").pop();

/** The canvas over a tile's image. @param {HTMLImageElement} image @param {number} [height] of the canvas in pixels @returns {HTMLCanvasElement} */
export function canvasOver(image, height = coveringHeight(image)) {
  let canvas = image.parentElement?.querySelector("canvas");
  if (!canvas) {
    canvas = el("canvas", { "aria-hidden": "true" });
    image.after(canvas);
  }
  canvas.width = Math.round((height * image.naturalWidth) / image.naturalHeight);
  canvas.height = height;
  return canvas;
}

/** Formats a time as minutes and seconds, such as 1:05. @param {number} seconds */
export const clock = (seconds) =>
  `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

/** The height in pixels of an image that is scaled to cover its tile. @param {HTMLImageElement} image */
function coveringHeight({ clientWidth, clientHeight, naturalWidth, naturalHeight }) {
  const scale = Math.max(clientWidth / naturalWidth, clientHeight / naturalHeight) * Math.min(2, devicePixelRatio);
  return Math.round(naturalHeight * Math.min(scale || 1, MAX_WIDTH / naturalWidth)) || 1; // 0: not laid out
}
