/** Results: what was measured of the pack's methods, and what each costs. */

import * as api from "./api.js";
import { announce, el } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

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
  }

  close() {}

  /** @param {import("./state.js").State} now */
  async update(now) {
    const place = `${now.pack} ${now.collection}`;
    if (place === this.place) return;
    this.place = place;
    let answer;
    try {
      answer = await api.results({ ...now, pack: now.pack || this.context.info.pack.name, collection: "" });
    } catch (error) {
      this.place = null;
      this.root.replaceChildren(el("p.problem", { role: "alert" }, error.message));
      return;
    }
    if (place !== this.place) return;
    this.sort = { key: "rsum", down: true };
    const titles = Object.fromEntries(Object.entries(answer.methods).map(([name, row]) => [name, row.title]));
    const measured = Object.values(answer.methods).some((row) => row.measured);
    const table = el("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Results of every method" });
    this.root.replaceChildren(
      ...[
        el("h2", {}, `${this.context.info.pack.title}: ${measured ? "measured results" : "no results were measured"}`),
        table,
        el("p.key", {}, "★ best of its column. ↓ lower is better, in all others higher. Choose a title to sort by it."),
        plot(answer),
        curves(answer.curves, titles),
        growth(answer.candidates, titles),
        ablations(answer.ablations),
        sources(answer),
        ...answer.problems.map((sentence) => el("p.problem", {}, sentence)),
      ].filter(Boolean),
    );
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
    const head = ({ key: own, title, meaning, best }) => {
      const sorted = own === key ? (down ? "descending" : "ascending") : "none";
      const button = el(
        "button",
        { type: "button", title: meaning || undefined, onclick: () => this.#resort(holder, answer, own, best) },
        `${title}${best === "lowest" ? " ↓" : ""}`,
        el("i", { "aria-hidden": "true" }, own === key ? (down ? " ▾" : " ▴") : ""),
      );
      if (meaning) {
        button.setAttribute("aria-description", meaning);
        const explain = () => (this.tip.textContent = `${title}: ${meaning}`);
        button.addEventListener("focus", explain);
        button.addEventListener("mouseenter", explain);
      }
      return el("th", { scope: "col", "aria-sort": sorted, "data-key": own }, button);
    };
    const groups = columns.reduce((all, { group }) => {
      if (all.at(-1)?.[0] === group) all.at(-1)[1] += 1;
      else all.push([group, 1]);
      return all;
    }, []);
    const tops = new Map(columns.map((column) => [column.key, bestOf(column, methods)]));
    const cell = (name, column) => {
      const number = methods[name].values[column.key];
      if (number === undefined) return el("td", {}, el("span", { title: "not measured" }, "–"));
      const text = shown(number, column.digits);
      if (!tops.get(column.key).has(name)) return el("td", {}, text);
      return el("td.best", {}, el("span", { "aria-hidden": "true" }, "★ "), text, el("span.hidden", {}, ", best"));
    };
    this.tip ??= el("p.tip", { "aria-hidden": "true" }, "Point at a title, or move to it, to see what it measures.");
    const focused = /** @type {HTMLElement|null} */ (document.activeElement?.closest("th"))?.dataset.key;
    holder.replaceChildren(
      el(
        "table.numbers",
        {},
        el("caption.hidden", {}, "Results of every method; choose a column's title to sort by it"),
        el(
          "thead",
          {},
          el("tr.groups", {}, el("td"), ...groups.map(([group, count]) => el("th", { scope: "colgroup", colSpan: count }, words(group)))),
          el("tr", {}, head({ key: "title", title: "method", meaning: "", best: "lowest_name" }), ...columns.map((column) => head({ ...column, meaning: words(column.meaning) }))),
        ),
        el(
          "tbody",
          {},
          ...names.map((name) =>
            el("tr", {}, el("th", { scope: "row", title: methods[name].paper }, methods[name].title), ...columns.map((column) => cell(name, column))),
          ),
        ),
      ),
    );
    if (!this.tip.isConnected) holder.after(this.tip);
    if (focused) /** @type {HTMLElement|null} */ (holder.querySelector(`[data-key="${focused}"] button`))?.focus();
  }

  #resort(holder, answer, key, best) {
    const down = this.sort.key === key ? !this.sort.down : !String(best).startsWith("lowest");
    this.sort = { key, down };
    this.#table(holder, answer);
    announce(`Sorted by ${key}, ${down ? "highest" : "lowest"} first`);
  }
}

const words = (text) => text.replaceAll("picture", "image").replaceAll("Picture", "Image");
const shown = (number, digits) => number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** Methods with a column's best number as it is shown; none where all have the same. */
function bestOf({ key, digits, best }, methods) {
  const known = Object.entries(methods).filter(([, row]) => best && row.values[key] !== undefined);
  const rounded = known.map(([name, row]) => [name, Number(row.values[key].toFixed(digits))]);
  const numbers = rounded.map(([, number]) => number);
  if (new Set(numbers).size < 2) return new Set();
  const top = best === "highest" ? Math.max(...numbers) : Math.min(...numbers);
  return new Set(rounded.filter(([, number]) => number === top).map(([name]) => name));
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** A table that only screen readers see. */
function table(caption, head, rows) {
  return el(
    "table.hidden",
    {},
    el("caption", {}, caption),
    el("tr", {}, ...head.map((title) => el("th", { scope: "col" }, title))),
    ...rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), ...rest.map((value) => el("td", {}, String(value))))),
  );
}

/** Accuracy against speed: up is more accurate, left is faster. */
function plot({ methods, speed }) {
  const points = Object.values(methods)
    .map(({ title, values }) => ({ title, ms: values.query_ms, rsum: values.rsum, size: values.megabytes ?? 1 }))
    .filter(({ ms, rsum }) => ms !== undefined && rsum !== undefined);
  if (!speed || points.length < 2) return null;
  const label = "Accuracy against speed";
  return el(
    "section",
    {},
    el("h2", {}, label),
    el("figure.plot", {}, scatter(points, 640, 340, label, "wide"), scatter(points, 340, 320, label, "narrow"), table(label, ["method", "ms a query", "rsum of 600"], points.map(({ title, ms, rsum }) => [title, ms.toFixed(2), rsum.toFixed(1)]))),
    el(
      "p.key",
      {},
      `Up is more accurate, left is faster; the area of a circle is the size on disk. No method beats both numbers of one on the dashed line. Median of ${speed.queries} queries over ${speed.pictures.toLocaleString("en")} images, ${speed.hardware}.`,
    ),
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
  const places = points.map((point) => ({ ...point, cx: x(Math.log(point.ms)), cy: y(point.rsum), r: 4 + 7 * Math.sqrt(point.size / largest) }));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: kind, role: "img", "aria-label": label });
  const text = (content, at, anchor = "middle", name = "tick") => svg("text", { x: at[0], y: at[1], "text-anchor": anchor, class: name }, content);
  for (const value of ticks(points.map(({ rsum }) => rsum))) {
    root.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "rule" }), text(String(value), [left - 8, y(value) + 4], "end"));
  }
  for (const value of ticks(points.map(({ ms }) => ms))) {
    root.append(text(String(value), [x(Math.log(value)), height - bottom + 18]));
  }
  root.append(text("milliseconds a query", [(left + width - right) / 2, height - 8]), text("rsum", [left - 8, 12], "end"));
  let highest = -Infinity;
  const front = [...places].sort((a, b) => a.ms - b.ms || b.rsum - a.rsum).filter(({ rsum }) => rsum > highest && ((highest = rsum), true));
  root.append(svg("polyline", { points: front.map(({ cx, cy }) => `${cx},${cy}`).join(" "), class: "front" }));
  for (const { cx, cy, r } of places) root.append(svg("circle", { cx, cy, r }));
  const taken = places.map(({ cx, cy, r }) => [cx - r, cy - r, cx + r, cy + r]);
  for (const { title, cx, cy, r } of places) {
    const box = freePlace(cx, cy, r, 8 * title.length + 4, taken, width, height - bottom);
    taken.push(box);
    root.append(text(title, [box[0] + 2, box[3] - 4], "start", "name"));
  }
  return root;
}

/** A place near a circle for a label of a width: the first that covers nothing, else the one that covers least. */
function freePlace(cx, cy, r, wide, taken, width, height) {
  const tall = 17;
  const options = [];
  for (const far of [4, 20, 36]) {
    const around = [
      [cx + r + far, cy - tall / 2],
      [cx - r - far - wide, cy - tall / 2],
      [cx - wide / 2, cy - r - far - tall],
      [cx - wide / 2, cy + r + far],
      [cx + r + far / 2, cy - r - far - tall / 2],
      [cx + r + far / 2, cy + r + far - tall / 2],
    ];
    for (const [l, t] of around) options.push([l, t, l + wide, t + tall]);
  }
  const covered = (box) => {
    const outside = box[0] < 50 || box[2] > width || box[1] < 0 || box[3] > height ? 1e4 : 0;
    const overlap = taken.reduce((sum, other) => {
      const across = Math.min(box[2], other[2]) - Math.max(box[0], other[0]);
      const down = Math.min(box[3], other[3]) - Math.max(box[1], other[1]);
      return sum + Math.max(0, across) * Math.max(0, down);
    }, 0);
    return outside + overlap;
  };
  return options.reduce((best, box) => (covered(box) < covered(best) ? box : best));
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

/** How each training went: a small curve of the loss and one of the validation. */
function curves(trainings, titles) {
  if (!trainings.length) return null;
  const spark = (points, logarithmic) => {
    if (!points.length) return [el("td"), el("td")];
    const values = points.map(([, value]) => (logarithmic && value > 0 ? Math.log(value) : value));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const line = values.map((value, i) => `${3 + (114 * i) / (values.length - 1 || 1)},${25 - (22 * (value - low)) / (high - low || 1)}`);
    const end = line[line.length - 1].split(",");
    return [
      el("td", {}, svg("svg", { viewBox: "0 0 120 28", class: "spark", "aria-hidden": "true" }, svg("polyline", { points: line.join(" ") }), svg("circle", { cx: end[0], cy: end[1], r: 2.5 }))),
      el("td", {}, `${short(points[0][1])} → ${short(points[points.length - 1][1])}`),
    ];
  };
  return fold(
    "Training curves",
    el(
      "div.scroll",
      { tabIndex: 0, role: "region", "aria-label": "Trainings" },
      el(
        "table.numbers",
        {},
        el("thead", {}, el("tr", {}, ...["method", "epochs", "minutes"].map((title) => el("th", { scope: "col" }, title)), el("th", { scope: "col", colSpan: 2 }, "loss (log)"), el("th", { scope: "col", colSpan: 2 }, "validation rsum, of 600"))),
        el(
          "tbody",
          {},
          ...trainings.map(({ name, epochs, minutes, loss, rsum }) =>
            el("tr", {}, el("th", { scope: "row" }, titles[name] ?? name), el("td", {}, String(epochs)), el("td", {}, minutes ? minutes.toFixed(0) : "–"), ...spark(loss, true), ...spark(rsum, false)),
          ),
        ),
      ),
    ),
  );
}

const short = (value) => (Math.abs(value) >= 1000 ? shown(value, 0) : String(Number(value.toPrecision(4))));

/** How the time of a query grows with the images. */
function growth(candidates, titles) {
  if (!candidates) return null;
  const rows = Object.entries(candidates.median).map(([name, times]) =>
    el("tr", {}, el("th", { scope: "row" }, titles[name] ?? name.toUpperCase()), ...times.map((time) => el("td", {}, short(time)))),
  );
  return fold(
    "How a query slows down as images are added",
    el(
      "div.scroll",
      { tabIndex: 0, role: "region", "aria-label": "Milliseconds by images" },
      el("table.numbers", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "ms, of images"), ...candidates.images.map((count) => el("th", { scope: "col" }, count.toLocaleString("en"))))), el("tbody", {}, ...rows)),
    ),
    el("p.key", {}, `One text scored against all images, its encoder not counted. ${candidates.hardware}.`),
  );
}

/** Each ablation: what the paper found, and what was found here. */
function ablations(tables) {
  if (!tables.length) return null;
  return el(
    "section.ablations",
    {},
    el("h2", {}, "Ablations"),
    ...tables.map(({ title, paper, found, here, columns, rows, note, hardware, seeds, command }) => {
      const digits = columns.map((_, c) => Math.max(0, ...rows.map((row) => (typeof row[c] === "number" ? (String(row[c]).split(".")[1] ?? "").length : 0))));
      const cell = (value, c) => (value === null ? "–" : typeof value === "number" ? shown(value, digits[c]) : value);
      return fold(
        title,
        el("p", {}, paper),
        el("dl", {}, el("dt", {}, "The paper found"), el("dd", {}, found), here && el("dt", {}, "Here"), here && el("dd", {}, here)),
        el(
          "div.scroll",
          { tabIndex: 0, role: "region", "aria-label": title },
          el(
            "table.numbers",
            {},
            el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)))),
            el("tbody", {}, ...rows.map((row) => el("tr", {}, el("th", { scope: "row" }, cell(row[0], 0)), ...row.slice(1).map((value, c) => el("td", {}, cell(value, c + 1)))))),
          ),
        ),
        note && el("p.key", {}, note),
        el("p.key", {}, `${hardware}, seed ${seeds.join(", ")}: `, el("code", {}, command)),
      );
    }),
  );
}

/** The commands that made the table, one where they differ in the method only. */
function sources({ methods, speed }) {
  const found = new Map();
  for (const { title, measured } of Object.values(methods)) {
    if (!measured) continue;
    const command = measured.command.replace(/(--method )\S+/, "$1METHOD").replace(/(--data[ =])\S+/, "$1DIR");
    const about = `${measured.split} split, training seed ${measured.seed ?? "unknown"}, ${measured.hardware}`;
    const key = `${about}\n${command}`;
    found.set(key, [...(found.get(key) ?? []), title]);
  }
  if (!found.size) return null;
  const items = [...found].map(([key, titles]) => {
    const [about, command] = key.split("\n");
    return el("li", {}, found.size > 1 ? `${titles.join(", ")}: ` : "", about, ": ", el("code", {}, command));
  });
  if (speed?.command) items.push(el("li", {}, "Speed: ", el("code", {}, speed.command)));
  return fold("Where the numbers come from", el("ul.key", {}, ...items));
}

function fold(title, ...content) {
  return el("details.fold", {}, el("summary", {}, title), ...content);
}
