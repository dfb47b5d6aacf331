/** Exports a comparison: a sheet for printing (PNG), a table (CSV), or all data (JSON). */

import { el } from "./dom.js";

const OF_COLUMN = ["method", "title", "ms"];
const OF_HIT = ["rank", "image_id", "file", "seconds", "score", "right", "left_rank"];
const FORMULA = /^(\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])/; // text that a spreadsheet would execute

/** A row for each column and rank; unknown values are empty. @param {any} answer of `/compare` @returns {Blob} */
export function toCsv(answer) {
  const rows = answer.columns.flatMap((column, c) =>
    column.hits.map((hit) => [
      answer.query,
      c + 1,
      ...OF_COLUMN.map((name) => column[name]),
      ...OF_HIT.map((name) => hit[name]),
    ]),
  );
  return csv([["query", "column", ...OF_COLUMN, ...OF_HIT], ...rows]);
}

/** @param {any[][]} rows @returns {Blob} a table without formulas that spreadsheets would execute */
export function csv(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    const text = typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return new Blob([`${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`], { type: "text/csv" });
}

/** @param {any} answer of `/compare` @param {string} gallery title of the collection @returns {Blob} */
export function toJson(answer, gallery) {
  return new Blob([`${JSON.stringify({ gallery, ...answer }, null, 1)}\n`], { type: "application/json" });
}

/**
 * @param {any} answer of `/compare`
 * @param {string} gallery title of the collection
 * @param {(id: number) => string} address of a thumbnail
 * @returns {Promise<Blob|null>} a PNG with a column for each method and a row for each rank
 */
export async function drawSheet(answer, gallery, address) {
  const [width, height, gap, head] = [200, 180, 12, 118];
  const depth = Math.max(...answer.columns.map((column) => column.hits.length));
  const canvas = document.createElement("canvas");
  canvas.width = 36 + answer.columns.length * (width + gap);
  canvas.height = head + depth * (height + gap) + gap;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const write = (text, x, y, font, colour = "#17191c", room = width) => {
    pen.font = `${font} system-ui, sans-serif`;
    pen.fillStyle = colour;
    let shown = text;
    while (shown.length > 1 && pen.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
    pen.fillText(shown, x, y);
  };
  pen.fillStyle = "#ffffff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  write(answer.query, 24, 38, "600 24px", "#17191c", canvas.width - 48);
  write(`${gallery}, ${answer.pictures.toLocaleString("en")} images`, 24, 60, "14px", "#565c66", canvas.width - 48);
  for (const [c, column] of answer.columns.entries()) {
    const x = 24 + c * (width + gap);
    write(column.title, x, 90, "600 17px");
    write(column.best_true_rank === null ? "" : `right at ${column.best_true_rank}`, x, 109, "14px", "#18703a");
    const images = column.hits.map((hit) => el("img", { src: address(hit.image_id) }));
    await Promise.all(images.map((image) => image.decode().catch(() => {})));
    for (const [r, hit] of column.hits.entries()) {
      const y = head + r * (height + gap);
      const image = images[r];
      pen.fillStyle = "#f3f4f6";
      pen.fillRect(x, y, width, height);
      if (image.naturalWidth) {
        const scale = Math.min(width / image.naturalWidth, height / image.naturalHeight);
        const [w, h] = [image.naturalWidth * scale, image.naturalHeight * scale];
        pen.drawImage(image, x + (width - w) / 2, y + (height - h) / 2, w, h);
      }
      if (hit.right) {
        pen.strokeStyle = "#18703a";
        pen.lineWidth = 4;
        pen.strokeRect(x + 2, y + 2, width - 4, height - 4);
      }
      const move = hit.new ? "new" : hit.move ? `${hit.move > 0 ? "▲" : "▼"}${Math.abs(hit.move)}` : "";
      const label = [hit.rank, move, hit.right ? "✓" : ""].filter(Boolean).join(" ");
      pen.font = "600 14px system-ui, sans-serif";
      pen.fillStyle = hit.right ? "#18703a" : "rgb(0 0 0 / 70%)";
      pen.fillRect(x + 6, y + 6, pen.measureText(label).width + 12, 22);
      write(label, x + 12, y + 22, "600 14px", "#ffffff");
    }
  }
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
