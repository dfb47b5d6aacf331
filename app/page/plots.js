/** Matrices and curves as SVG, with values on hover. */

import { el, svg } from "./dom.js";
import { viridis } from "./evidence.js";

const BLUE = [37, 99, 235];
const ORANGE = [217, 119, 6];
const LINES = ["#2563eb", "#d97706", "#d6336c", "#2f9e44"];

const title = (text) => svg("title", {}, text);

/**
 * @param {any} matrix rows of numbers, with `rows`, `columns` (names), `marks` ([row, column] pairs),
 *   `limits` ([low, high] or null) and `title`
 * @returns {SVGElement}
 */
export function heatmap({ values, rows, columns, marks = [], limits = null, title: name }) {
  const flat = values.flat();
  const [low, high] = limits ?? [Math.min(...flat), Math.max(...flat)];
  const side = Math.max(9, Math.min(34, 480 / Math.max(rows.length, columns.length)));
  const longest = (names) => Math.max(0, ...names.map((each) => String(each).length));
  const labelled = side >= 12;
  const left = labelled ? Math.min(150, 7 * longest(rows) + 8) : 4;
  const top = labelled ? Math.min(110, 5.5 * longest(columns) + 10) : 4;
  const width = left + side * columns.length + (labelled ? 40 : 4);
  const height = top + side * rows.length + 4;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "chart" });
  const range = `from ${round(Math.min(...flat))} to ${round(Math.max(...flat))}`;
  chart.setAttribute("aria-label", `${name}: ${rows.length} by ${columns.length}, ${range}`);
  const marked = new Set(marks.map(([row, column]) => `${row} ${column}`));
  values.forEach((row, r) =>
    row.forEach((value, c) => {
      const cell = svg("rect", { x: left + c * side, y: top + r * side, width: side - 1, height: side - 1 });
      cell.setAttribute("fill", colour(value, low, high));
      if (marked.has(`${r} ${c}`)) {
        cell.setAttribute("stroke", "#f59f00");
        cell.setAttribute("stroke-width", "3");
      }
      cell.append(title(`${rows[r]} · ${columns[c]}: ${round(value)}`));
      chart.append(cell);
    }),
  );
  if (labelled) {
    rows.forEach((each, r) =>
      chart.append(svg("text", { x: left - 5, y: top + (r + 0.5) * side + 4, "text-anchor": "end" }, String(each))),
    );
    columns.forEach((each, c) => {
      const x = left + (c + 0.5) * side;
      chart.append(svg("text", { x, y: top - 6, transform: `rotate(-40 ${x} ${top - 6})` }, String(each)));
    });
  }
  return chart;
}

/** Blue for negative and orange for positive values; viridis if nothing is negative. */
function colour(value, low, high) {
  if (low >= 0) return css(viridis((value - low) / (high - low || 1)));
  const share = Math.min(1, Math.abs(value) / Math.max(high, -low, 1e-9));
  const target = value < 0 ? BLUE : ORANGE;
  return css(target.map((part) => 244 + share * (part - 244)));
}

const css = (parts) => `rgb(${parts.map(Math.round).join(" ")})`;
const round = (value) => (Math.abs(value) >= 0.01 || value === 0 ? value.toFixed(2) : value.toExponential(1));

/**
 * @param {any} curve a line for each row: `values`, `rows` (names of the lines), `columns` (of the points), `title`
 * @returns {HTMLElement}
 */
export function curves({ values, rows, columns, title: name }) {
  const [width, height, left, bottom] = [520, 200, 44, 24];
  const flat = values.flat();
  const low = Math.min(0, ...flat);
  const high = Math.max(...flat) || 1;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "chart" });
  chart.setAttribute("aria-label", `${name}: ${rows.length} lines of ${columns.length} points`);
  const x = (place, count) => left + ((width - left - 10) * place) / Math.max(1, count - 1);
  const y = (value) => 8 + (height - bottom - 8) * (1 - (value - low) / (high - low || 1));
  for (const value of [low, (low + high) / 2, high]) {
    chart.append(
      svg("line", { x1: left, x2: width - 10, y1: y(value), y2: y(value), class: "rule" }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, round(value)),
    );
  }
  chart.append(
    svg("text", { x: left, y: height - 5 }, String(columns[0] ?? "")),
    svg("text", { x: width - 10, y: height - 5, "text-anchor": "end" }, String(columns.at(-1) ?? "")),
  );
  values.forEach((line, l) => {
    const points = line.map((value, i) => `${x(i, line.length)},${y(value)}`).join(" ");
    chart.append(svg("polyline", { points, fill: "none", stroke: LINES[l % LINES.length], "stroke-width": 2 }));
    line.forEach((value, i) => {
      const dot = svg("circle", { cx: x(i, line.length), cy: y(value), r: 4, fill: LINES[l % LINES.length], opacity: 0.75 });
      dot.append(title(`${rows[l]}, ${columns[i] ?? i}: ${round(value)}`));
      chart.append(dot);
    });
  });
  const names = rows.map((each, l) => {
    const key = el("i");
    key.style.borderColor = LINES[l % LINES.length];
    return el("span", {}, key, each);
  });
  return el("div", {}, chart, rows.length > 1 ? el("div.legend", {}, ...names) : null);
}
