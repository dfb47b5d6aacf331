/** The selection of tiles: its bar, and its export as CSV or as a ZIP archive of the images. */

import * as api from "./api.js";
import { announce, button, el, save, toast } from "./dom.js";
import { csv } from "./export.js";
import { state } from "./state.js";

export class Selection {
  /** @param {() => any[]} hits all results, best first @param {() => void} changed called after a change */
  constructor(hits, changed) {
    this.hits = hits;
    this.changed = changed;
    this.active = false;
    /** @type {Set<number>} */
    this.ids = new Set();
    this.bar = el("div.selection", { role: "group", "aria-label": "Selection", hidden: true });
  }

  /** Starts or ends selecting. */
  toggle(active = !this.active) {
    this.active = active;
    if (!active) this.ids.clear();
    this.#draw();
  }

  /** Selects or deselects an image. @param {number} id */
  flip(id) {
    this.active = true;
    if (!this.ids.delete(id)) this.ids.add(id);
    this.#draw();
  }

  #draw() {
    const count = this.ids.size;
    this.bar.hidden = !this.active;
    this.bar.replaceChildren(
      el("span", {}, count ? `${count} selected` : "Click images to select them"),
      button("All", () => {
        for (const hit of this.hits()) this.ids.add(hit.image_id);
        this.#draw();
      }),
      button("CSV", () => this.#csv(), "button", { disabled: !count }),
      button("ZIP of images", () => this.#zip(), "button", { disabled: !count }),
      button("Done", () => this.toggle(false)),
    );
    if (this.active) announce(`${count} selected`);
    this.changed();
  }

  #chosen() {
    return this.hits().filter((hit) => this.ids.has(hit.image_id));
  }

  #csv() {
    const rows = [["rank", "image", "file", "score", "seconds", "known answer", "caption"]];
    for (const hit of this.#chosen()) {
      const caption = hit.captions?.[0] ?? "";
      rows.push([hit.rank, hit.image_id, hit.file, hit.score, hit.seconds ?? "", hit.satisfies ?? "", caption]);
    }
    save("polyview.csv", csv(rows));
  }

  async #zip() {
    const files = [];
    try {
      for (const hit of this.#chosen()) {
        const response = await api.imageFile(state(), hit.image_id);
        const name = hit.file.split("/").pop().replace(/\.\w+$/, "");
        const place = String(hit.rank).padStart(4, "0");
        files.push({ name: `${place}-${name}.webp`, content: new Uint8Array(response) });
      }
    } catch (error) {
      toast(error.message);
      return;
    }
    save("polyview.zip", zip(files));
  }
}

/** A ZIP archive without compression. @param {{name: string, content: Uint8Array}[]} files @returns {Blob} */
export function zip(files) {
  const parts = [];
  const directory = [];
  let offset = 0;
  for (const { name, content } of files) {
    const encoded = new TextEncoder().encode(name);
    // version 2.0, UTF-8 names, stored, 1 January 1980
    const fields = [[2, 20], [2, 0x800], [2, 0], [2, 0], [2, 33], [4, crc32(content)]];
    const sizes = [[4, content.length], [4, content.length], [2, encoded.length], [2, 0]];
    const head = little([[4, 0x04034b50], ...fields, ...sizes]);
    parts.push(head, encoded, content);
    const rest = [[2, 0], [2, 0], [2, 0], [4, 0], [4, offset]];
    directory.push(little([[4, 0x02014b50], [2, 20], ...fields, ...sizes, ...rest]), encoded);
    offset += head.length + encoded.length + content.length;
  }
  const length = directory.reduce((sum, part) => sum + part.length, 0);
  const end = [[4, 0x06054b50], [2, 0], [2, 0], [2, files.length], [2, files.length], [4, length], [4, offset], [2, 0]];
  return new Blob([...parts, ...directory, little(end)], { type: "application/zip" });
}

/** Numbers as little-endian bytes. @param {number[][]} fields pairs of width in bytes and value */
function little(fields) {
  const bytes = fields.flatMap(([width, value]) => Array.from({ length: width }, (_, i) => (value >>> (8 * i)) & 255));
  return new Uint8Array(bytes);
}

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

/** @param {Uint8Array} bytes */
function crc32(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}
