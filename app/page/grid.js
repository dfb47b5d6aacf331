/**
 * The results: justified rows of tiles with true proportions. Only tiles near the window have an
 * image; near-duplicates stand behind the first of their kind.
 *
 * @typedef {Object} GridOptions
 * @property {(id: number) => string} address of a thumbnail
 * @property {(hit: any, event: MouseEvent) => void} choose called when a tile is chosen
 * @property {() => void} [more] called when the end comes near
 * @property {(hits: any[]) => void} [appear] called with hits that came into view, for evidence
 */

import { el } from "./dom.js";

const GAP = 8;
const ROW = 190; // height of a row on a wide screen
const ROW_NARROW = 172;

export class Grid {
  /** @param {HTMLElement} container @param {GridOptions} options */
  constructor(container, options) {
    this.container = container;
    this.options = options;
    /** @type {Map<number, HTMLElement>} */
    this.tiles = new Map();
    this.hits = [];
    /** Ids of the tiles in or near the window. @type {Set<number>} */
    this.visible = new Set();
    this.width = 0;
    container.classList.add("grid");
    this.seen = new IntersectionObserver((entries) => this.#appear(entries), { rootMargin: "400px" });
    this.resized = new ResizeObserver(() => this.#layout());
    this.resized.observe(container);
  }

  /** Shows hits; those that were shown before keep their tiles. @param {any[]} hits */
  show(hits) {
    this.hits = hits.filter((hit) => hit.alike === null || hit.alike === undefined);
    this.folded = new Map();
    for (const hit of hits) {
      if (hit.alike) this.folded.set(hit.alike, (this.folded.get(hit.alike) ?? 0) + 1);
    }
    const ids = new Set(this.hits.map((hit) => hit.image_id));
    for (const [id, tile] of this.tiles) {
      if (ids.has(id)) continue;
      this.seen.unobserve(tile);
      tile.remove();
      this.tiles.delete(id);
      this.visible.delete(id);
    }
    this.hits.forEach((hit, place) => {
      let tile = this.tiles.get(hit.image_id);
      if (!tile) {
        tile = this.#tile(hit);
        this.tiles.set(hit.image_id, tile);
      }
      this.#describe(tile, hit);
      if (this.container.children[place] !== tile) {
        this.container.insertBefore(tile, this.container.children[place] ?? null);
      }
      this.seen.observe(tile);
    });
    this.width = 0;
    this.#layout();
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

  /** The nearest tile in the row above or below. @param {number} id @param {number} direction -1 or 1 @returns {number|undefined} */
  neighbour(id, direction) {
    const own = this.tiles.get(id)?.getBoundingClientRect();
    if (!own) return undefined;
    const centre = own.left + own.width / 2;
    let best;
    for (const hit of this.hits) {
      const rect = this.tiles.get(hit.image_id).getBoundingClientRect();
      const down = direction * (rect.top - own.top);
      if (down < 10) continue;
      const distance = 10 * down + Math.abs(rect.left + rect.width / 2 - centre);
      if (!best || distance < best.distance) best = { id: hit.image_id, distance };
    }
    return best?.id;
  }

  /** The tile's image, once it is loaded. @param {number} id @returns {Promise<HTMLImageElement|null>} */
  async image(id) {
    const image = /** @type {HTMLImageElement|null} */ (this.tiles.get(id)?.querySelector("img[src]") ?? null);
    await image?.decode().catch(() => {});
    return image?.naturalWidth ? image : null;
  }

  /** The canvas over a tile's image, as large as the image. @param {HTMLImageElement} image @returns {HTMLCanvasElement} */
  canvas(image) {
    let canvas = image.parentElement?.querySelector("canvas");
    if (!canvas) {
      canvas = el("canvas", { "aria-hidden": "true" });
      image.after(canvas);
    }
    canvas.width = image.naturalWidth;
    canvas.height = image.naturalHeight;
    return canvas;
  }

  /** Takes evidence away from all tiles. */
  clear() {
    for (const canvas of this.container.querySelectorAll("canvas")) canvas.remove();
  }

  destroy() {
    this.seen.disconnect();
    this.resized.disconnect();
  }

  #tile(hit) {
    const image = el("img", { alt: "", draggable: false });
    const tile = el(
      "button.tile",
      { type: "button", onclick: (event) => this.options.choose(this.current(hit.image_id), event) },
      image,
      el("span.rank"),
      el("span.badge"),
    );
    tile.dataset.id = String(hit.image_id);
    return tile;
  }

  /** The hit as it is now. @param {number} id */
  current(id) {
    return this.hits.find((hit) => hit.image_id === id);
  }

  #describe(tile, hit) {
    const caption = hit.captions?.[0] ?? hit.file.split("/").pop();
    const same = this.folded.get(hit.rank);
    tile.setAttribute("aria-label", `${hit.rank}: ${caption}${hit.satisfies ? ", a known answer" : ""}`);
    tile.title = `${caption}\nscore ${hit.score.toFixed(3)}`;
    tile.querySelector(".rank").textContent = String(hit.rank);
    tile.toggleAttribute("data-right", Boolean(hit.satisfies));
    const badge = tile.querySelector(".badge");
    const moment = hit.seconds === null || hit.seconds === undefined ? "" : clock(hit.seconds);
    badge.textContent = [moment, same ? `+${same} alike` : ""].filter(Boolean).join(" · ");
    badge.hidden = !badge.textContent;
  }

  #appear(entries) {
    const appeared = [];
    for (const { target, isIntersecting } of entries) {
      const id = Number(/** @type {HTMLElement} */ (target).dataset.id);
      const image = /** @type {HTMLImageElement} */ (target.querySelector("img"));
      const hit = this.current(id);
      if (isIntersecting) this.visible.add(id);
      else this.visible.delete(id);
      if (!hit || !isIntersecting) continue;
      if (!image.getAttribute("src")) image.src = this.options.address(id);
      appeared.push(hit);
      if (hit === this.hits.at(-1)) this.options.more?.();
    }
    if (appeared.length) this.options.appear?.(appeared);
  }

  /** Fills rows: the proportions stay, the heights of a row are equal. */
  #layout() {
    const width = Math.floor(this.container.getBoundingClientRect().width) - 1; // never wraps by rounding
    if (width <= 0 || width === this.width) return;
    this.width = width;
    const height = width < 560 ? ROW_NARROW : ROW;
    let row = [];
    let ratios = 0;
    const flush = (full) => {
      const space = width - GAP * (row.length - 1);
      const tall = full ? space / ratios : Math.min(height, space / ratios);
      for (const [tile, ratio] of row) {
        tile.style.width = `${Math.floor(tall * ratio * 100) / 100}px`;
        tile.style.height = `${tall}px`;
      }
      row = [];
      ratios = 0;
    };
    for (const hit of this.hits) {
      const tile = this.tiles.get(hit.image_id);
      const ratio = Math.min(3, Math.max(0.4, (hit.width || 1) / (hit.height || 1)));
      row.push([tile, ratio]);
      ratios += ratio;
      if (ratios * height + GAP * (row.length - 1) >= width) flush(true);
    }
    if (row.length) flush(false);
  }
}

/** Minutes and seconds. @param {number} seconds */
export const clock = (seconds) =>
  `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
