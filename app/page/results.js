/** Results: accuracy, speed and size of the pack's methods. */

import * as api from "./api.js";
import { announce, button, el, svg } from "./dom.js";

/** @param {HTMLElement} container @param {import("./main.js").Context} context */
export function render(container, context) {
  return new Results(container, context);
}

class Results {
  constructor(container, context) {
    this.context = context;
    this.root = el("div.results");
    container.append(this.root);
    this.place = null;
    this.sort = { key: "rsum", down: true };
    this.tip = el("p.tip", { "aria-hidden": "true" }, "Point at a column title, or focus it, to see what it measures.");
  }

  /** @param {import("./state.js").State} now */
  async update(now) {
    const place = `${now.pack} ${now.collection}`;
    if (place === this.place) return;
    this.place = place;
    const { pack } = this.context.info;
    let answer;
    try {
      answer = await api.results({ ...now, pack: now.pack || pack.name, collection: "" });
    } catch (error) {
      this.place = null;
      this.root.replaceChildren(el("p.problem", { role: "alert" }, error.message));
      return;
    }
    if (place !== this.place) return;
    const titles = Object.fromEntries(Object.entries(answer.methods).map(([name, row]) => [name, row.title]));
    const measured = Object.values(answer.methods).some((row) => row.measured);
    const table = el("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Results of every method" });
    const parts = [
      el("h2", {}, `${pack.title}: ${measured ? "measured results" : "no results were measured"}`),
      table,
      this.tip,
      el("p.key", {}, "★ marks the best of a column. In columns with ↓ lower is better, in all others higher. Click a title to sort."),
      plot(answer),
      trainings(answer.curves, titles),
      ablations(answer.ablations),
      sources(answer),
      ...answer.problems.map((sentence) => el("p.problem", {}, sentence)),
    ];
    this.root.replaceChildren(...parts.filter(Boolean));
    this.#table(table, answer);
  }

  #table(holder, answer) {
    const { columns, methods } = answer;
    const { key, down } = this.sort;
    const value = (name) => (key === "title" ? methods[name].title : methods[name].values[key]);
    const names = Object.keys(methods).sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      if (one === undefined || other === undefined) return Number(one === undefined) - Number(other === undefined);
      const order = typeof one === "string" ? one.localeCompare(other) : one - other;
      return down ? -order : order;
    });
    const groups = [];
    for (const { group } of columns) {
      if (groups.at(-1)?.group === group) groups.at(-1).count += 1;
      else groups.push({ group, count: 1 });
    }
    const over = groups.map(({ group, count }) => el("th", { scope: "colgroup", colSpan: count }, group));
    const first = { key: "title", title: "method", meaning: "", best: "lowest_name" };
    const heads = [first, ...columns].map((column) => this.#head(holder, answer, column));
    const tops = new Map(columns.map((column) => [column.key, bestOf(column, methods)]));
    const cell = (name, column) => {
      const number = methods[name].values[column.key];
      if (number === undefined) return el("td", {}, el("span", { title: "not measured" }, "–"));
      const text = rounded(number, column.digits);
      if (!tops.get(column.key).has(name)) return el("td", {}, text);
      return el("td.best", {}, el("span", { "aria-hidden": "true" }, "★ "), text, el("span.hidden", {}, ", best"));
    };
    const row = (name) => {
      const title = el("th", { scope: "row", title: methods[name].paper }, methods[name].title);
      return el("tr", {}, title, ...columns.map((column) => cell(name, column)));
    };
    const focused = /** @type {HTMLElement|null} */ (document.activeElement?.closest("th"))?.dataset.key;
    holder.replaceChildren(
      el("table.numbers", {},
        el("caption.hidden", {}, "Results of every method; a column's title sorts by it"),
        el("thead", {}, el("tr.groups", {}, el("td"), ...over), el("tr", {}, ...heads)),
        el("tbody", {}, ...names.map(row)),
      ),
    );
    if (focused) /** @type {HTMLElement|null} */ (holder.querySelector(`[data-key="${focused}"] button`))?.focus();
  }

  #head(holder, answer, { key, title, meaning, best }) {
    const { sort } = this;
    const order = sort.key === key ? (sort.down ? "descending" : "ascending") : "none";
    const explain = () => meaning && (this.tip.textContent = `${title}: ${meaning}`);
    const resort = () => {
      const down = sort.key === key ? !sort.down : !String(best).startsWith("lowest");
      this.sort = { key, down };
      this.#table(holder, answer);
      announce(`Sorted by ${title}, ${down ? "highest" : "lowest"} first`);
    };
    const properties = { title: meaning, "aria-description": meaning || null, onfocus: explain, onmouseenter: explain };
    const label = button(`${title}${best === "lowest" ? " ↓" : ""}`, resort, "button.quiet", properties);
    label.append(el("span", { "aria-hidden": "true" }, { none: "", descending: " ▾", ascending: " ▴" }[order]));
    return el("th", { scope: "col", "aria-sort": order, "data-key": key }, label);
  }
}

const rounded = (number, digits) =>
  number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const short = (value) => (Math.abs(value) >= 1000 ? rounded(value, 0) : String(Number(value.toPrecision(4))));

/** The methods with a column's best number, after rounding; none if all are equal. */
function bestOf({ key, digits, best }, methods) {
  const known = Object.entries(methods).filter(([, row]) => best && row.values[key] !== undefined);
  const shown = known.map(([name, row]) => [name, Number(row.values[key].toFixed(digits))]);
  const numbers = shown.map(([, number]) => number);
  if (new Set(numbers).size < 2) return new Set();
  const top = best === "highest" ? Math.max(...numbers) : Math.min(...numbers);
  return new Set(shown.filter(([, number]) => number === top).map(([name]) => name));
}

/** A table in a scrolling box. @param {string} label @param {any[]} head texts or cells @param {any[][]} rows */
function grid(label, head, rows) {
  const title = (cell) => (typeof cell === "string" ? el("th", { scope: "col" }, cell) : cell);
  const data = (cell) => (cell instanceof Node ? cell : el("td", {}, String(cell)));
  const row = ([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), ...rest.map(data));
  const table = el("table.numbers", {},
    el("thead", {}, el("tr", {}, ...head.map(title))),
    el("tbody", {}, ...rows.map(row)),
  );
  return el("div.scroll", { tabIndex: 0, role: "region", "aria-label": label }, table);
}

/** Accuracy against speed: up is more accurate, left is faster. */
function plot({ methods, speed }) {
  const points = Object.values(methods)
    .map(({ title, values }) => ({ title, ms: values.query_ms, rsum: values.rsum, size: values.megabytes ?? 1 }))
    .filter(({ ms, rsum }) => ms !== undefined && rsum !== undefined);
  if (!speed || points.length < 2) return null;
  const label = "Accuracy against speed";
  const numbers = points.map(({ title, ms, rsum }) => [title, ms.toFixed(2), rsum.toFixed(1)]);
  const about = [
    "Up is more accurate, left is faster; the area of a circle is the size on disk.",
    "No method is both faster and more accurate than one on the dashed line.",
    `Median of ${speed.queries} queries over ${speed.pictures.toLocaleString("en")} images, ${speed.hardware}.`,
  ];
  return el("section", {},
    el("h2", {}, label),
    el("figure.plot", {}, scatter(points, 640, 340, label, "wide"), scatter(points, 340, 320, label, "narrow"),
      el("div.hidden", {}, grid(`${label} in numbers`, ["method", "ms per query", "rsum of 600"], numbers))),
    el("p.key", {}, about.join(" ")),
  );
}

function scatter(points, width, height, label, kind) {
  const [left, right, top, bottom] = [52, 20, 20, 46];
  const scale = (values, from, to) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const edge = 0.1 * (high - low || 1);
    return (value) => from + ((value - low + edge) / (high - low + 2 * edge)) * (to - from);
  };
  const x = scale(points.map(({ ms }) => Math.log(ms)), left, width - right);
  const y = scale(points.map(({ rsum }) => rsum), height - bottom, top);
  const largest = Math.max(...points.map(({ size }) => size));
  const radius = ({ size }) => 4 + 7 * Math.sqrt(size / largest);
  const places = points.map((point) => ({ ...point, cx: x(Math.log(point.ms)), cy: y(point.rsum), r: radius(point) }));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: kind, role: "img", "aria-label": label });
  const text = (content, [tx, ty], anchor = "middle", name = "tick") =>
    svg("text", { x: tx, y: ty, "text-anchor": anchor, class: name }, content);
  for (const value of ticks(points.map(({ rsum }) => rsum))) {
    root.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "rule" }));
    root.append(text(String(value), [left - 8, y(value) + 4], "end"));
  }
  for (const value of ticks(points.map(({ ms }) => ms))) {
    root.append(text(String(value), [x(Math.log(value)), height - bottom + 18]));
  }
  root.append(text("milliseconds per query", [(left + width - right) / 2, height - 8]));
  root.append(text("rsum", [left - 8, 12], "end"));
  let highest = -Infinity;
  const best = ({ rsum }) => rsum > highest && ((highest = rsum), true);
  const front = [...places].sort((a, b) => a.ms - b.ms || b.rsum - a.rsum).filter(best);
  root.append(svg("polyline", { points: front.map(({ cx, cy }) => `${cx},${cy}`).join(" "), class: "front" }));
  for (const { cx, cy, r } of places) root.append(svg("circle", { cx, cy, r }));
  const taken = places.map(({ cx, cy, r }) => [cx - r, cy - r, cx + r, cy + r]);
  for (const { title, cx, cy, r } of places) {
    const wide = 8 * title.length + 4;
    const box = freeBox([cx, cy], r, wide, taken, width);
    taken.push(box);
    const before = box[2] <= cx; // the label ends at its circle
    root.append(text(title, [before ? box[2] : box[0] + 2, box[3] - 4], before ? "end" : "start", "name"));
  }
  return root;
}

/** A box for a label near its circle that overlaps no other box. */
function freeBox([cx, cy], r, wide, taken, width) {
  const tall = 17;
  for (const far of [0, 8, 16, 24, 32, 48]) {
    for (const [l, t] of [
      [cx + r + 4, cy - tall / 2 - far],
      [cx + r + 4, cy - tall / 2 + far],
      [cx - r - 4 - wide, cy - tall / 2 - far],
      [cx - r - 4 - wide, cy - tall / 2 + far],
    ]) {
      const box = [l, t, l + wide, t + tall];
      const free = taken.every((o) => o[2] <= box[0] || o[0] >= box[2] || o[3] <= box[1] || o[1] >= box[3]);
      if (free && box[0] > 50 && box[2] < width) return box;
    }
  }
  return [cx - wide / 2, cy + r, cx + wide / 2, cy + r + tall];
}

/** Round numbers within a range, at most six. */
function ticks(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const rough = (high - low || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough) ?? power;
  const marks = [];
  for (let mark = Math.ceil(low / step) * step; mark <= high; mark += step) marks.push(Number(mark.toPrecision(6)));
  return marks;
}

/** Small curves of the loss and the validation rsum of each training run. */
function trainings(curves, titles) {
  if (!curves.length) return null;
  const spark = (points, logarithmic) => {
    if (!points.length) return [el("td"), el("td")];
    const values = points.map(([, value]) => (logarithmic && value > 0 ? Math.log(value) : value));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (i) => 3 + (114 * i) / (values.length - 1 || 1);
    const line = values.map((value, i) => `${x(i)},${25 - (22 * (value - low)) / (high - low || 1)}`);
    const [cx, cy] = line[line.length - 1].split(",");
    const curve = [svg("polyline", { points: line.join(" ") }), svg("circle", { cx, cy, r: 2.5 })];
    const sparkline = svg("svg", { viewBox: "0 0 120 28", class: "spark", "aria-hidden": "true" }, ...curve);
    return [el("td", {}, sparkline), `${short(points[0][1])} → ${short(points[points.length - 1][1])}`];
  };
  const wide = (title) => el("th", { scope: "col", colSpan: 2 }, title);
  const head = ["method", "epochs", "minutes", wide("loss (log)"), wide("validation rsum, of 600")];
  const row = ({ name, epochs, minutes, loss, rsum }) => [
    titles[name] ?? name,
    epochs,
    minutes ? minutes.toFixed(0) : "–",
    ...spark(loss, true),
    ...spark(rsum, false),
  ];
  return fold("Training curves", grid("Training runs", head, curves.map(row)));
}

/** The ablations, with the paper's findings. */
function ablations(tables) {
  if (!tables.length) return null;
  const table = ({ title, paper, found, columns, rows, note, hardware, seeds, command }) => {
    const decimals = (value) => (typeof value === "number" ? (String(value).split(".")[1] ?? "").length : 0);
    const digits = columns.map((_, c) => Math.max(0, ...rows.map((row) => decimals(row[c]))));
    const text = (value, c) => (value === null ? "–" : typeof value === "number" ? rounded(value, digits[c]) : value);
    return fold(
      title,
      el("p", {}, paper),
      found && el("dl", {}, el("dt", {}, "The paper found"), el("dd", {}, found)),
      grid(title, columns, rows.map((row) => row.map(text))),
      note && el("p.key", {}, note),
      el("p.key", {}, `${hardware}, ${seeds.length > 1 ? "seeds" : "seed"} ${seeds.join(", ")}: `, el("code", {}, command)),
    );
  };
  return el("section.ablations", {}, el("h2", {}, "Ablations"), ...tables.map(table));
}

/** The commands that produced the table; those that differ only in the method are merged. */
function sources({ methods, speed }) {
  const found = new Map();
  for (const { title, measured } of Object.values(methods)) {
    if (!measured) continue;
    const command = measured.command.replace("-m training.", "-m polyview ").replace(/(--method )\S+/, "$1METHOD").replace(/(--data[ =])\S+/, "$1DIR");
    const about = `${measured.split} split, training seed ${measured.seed ?? "unknown"}, ${measured.hardware}`;
    const key = `${about}\n${command}`;
    found.set(key, [...(found.get(key) ?? []), title]);
  }
  if (!found.size) return null;
  const items = [...found].map(([key, titles]) => {
    const [about, command] = key.split("\n");
    return el("li", {}, found.size > 1 ? `${titles.join(", ")}: ` : "", `${about}: `, el("code", {}, command));
  });
  if (speed?.command) items.push(el("li", {}, "Speed: ", el("code", {}, speed.command)));
  return fold("Where the numbers come from", el("ul.key", {}, ...items));
}

const fold = (title, ...content) => el("details.fold", {}, el("summary", {}, title), ...content);
