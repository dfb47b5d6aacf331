/**
 * The results: justified rows of tiles with true proportions. Only tiles near the window have an
 * image; near-duplicates stand behind the first of their kind until it is unfolded.
 *
 * @typedef {Object} GridOptions
 * @property {(id: number) => string} address of a thumbnail
 * @property {(hit: any, event: MouseEvent) => void} choose called when a tile is chosen
 * @property {(hit: any) => string} confidence "sure", "likely" or nothing
 * @property {() => void} more called when the end comes near
 * @property {() => void} appear called when hits came into view, for evidence
 */

import { el, nearest } from "./dom.js";
import { state } from "./state.js";

const GAP = 8;
const ROW = 190; // height of a row on a wide screen
const ROW_NARROW = 172;
const EAGER = 16; // images that are asked for before they are laid out

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

  /** Shows hits; those that were shown before keep their tiles. @param {any[]} hits */
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

  /** Takes evidence away from all tiles. */
  clear() {
    for (const canvas of this.container.querySelectorAll("canvas")) canvas.remove();
  }

  destroy() {
    this.seen.disconnect();
    this.resized.disconnect();
  }

  /** The hit as it is now. @param {number} id */
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
    const width = Math.floor(this.container.getBoundingClientRect().width) - 1; // never wraps by rounding
    if (width <= 0 || width === this.width) return;
    this.width = width;
    const tiles = this.hits.map((hit) => ({ element: this.tiles.get(hit.image_id), hit }));
    justify(tiles, width, width < 560 ? ROW_NARROW : ROW);
  }
}

/**
 * Sets sizes that fill rows: proportions stay, heights of a row are equal, and near to the wanted one.
 * @param {{element: any, hit: {width?: number|null, height?: number|null}}[]} tiles
 * @param {number} width of the rows in pixels
 * @param {number} height of a row, nearly
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
    if (row.length && before * after < height * height) flush(before); // nearer than with this tile
    row.push([element, ratio]);
    ratios += ratio;
  }
  if (row.length) flush(Math.min(height, fit(row.length, ratios)));
}

/** The caption that was asked for where it is the image's, else its first, else its file. @param {any} hit @param {string} q */
export const captionOf = ({ captions = [], file }, q) =>
  captions.find((caption) => caption === q) ?? captions[0] ?? file.split("/").pop();

/** The canvas over a tile's image. @param {HTMLImageElement} image @param {number} [height] of the canvas in pixels @returns {HTMLCanvasElement} */
export function canvasOver(image, height = image.naturalHeight) {
  let canvas = image.parentElement?.querySelector("canvas");
  if (!canvas) {
    canvas = el("canvas", { "aria-hidden": "true" });
    image.after(canvas);
  }
  canvas.width = Math.round((height * image.naturalWidth) / image.naturalHeight);
  canvas.height = height;
  return canvas;
}

/** Minutes and seconds. @param {number} seconds */
export const clock = (seconds) =>
  `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
