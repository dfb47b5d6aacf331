/** Mistakes: the captions that method A finds and method B misses, their words and kinds, and doubtful labels. */

import * as api from "./api.js";
import { methodOptions } from "./compare.js";
import { announce, button, closeMenus, el, icon, menu, redraw, save, select, toast, toggle } from "./dom.js";
import { go, state } from "./state.js";

const FIELDS = ["a", "b", "k", "cell", "kind", "order", "within", "queries", "pack", "collection"];
const FIRST = { a: "", b: "", k: null, cell: "", kind: "", order: "", within: [], queries: "" };
const DEPTHS = [1, 5, 10, 50];
const [PAGE, ALL] = [24, 5000]; // captions listed at a time, and in a CSV file
const ASK_AGAIN = 500; // milliseconds between requests while captions are ranked
const [EDGE, FOOT, PAD] = [34, 32, 16]; // pixels left of, below and within the scatter plot

/** @param {HTMLElement} container @param {import("./main.js").Context} context */
export function render(container, context) {
  return new Mistakes(container, context);
}

class Mistakes {
  constructor(container, context) {
    this.context = context;
    this.bar = el("div.bar.wrap");
    this.cells = el("div.cells", { role: "group", "aria-label": "Captions by the methods that find their image" });
    this.canvas = el("canvas", { role: "img" });
    [this.test, this.range, this.about] = [el("p.key"), el("div.legend"), el("div")];
    const figures = [el("summary", {}, "Ranks, words and kinds"), this.test, this.canvas, this.range, this.about];
    [this.head, this.list] = [el("div.bar"), el("ol.captions")];
    this.more = button("Show more", () => this.#ask(this.count + PAGE), "button.more", { hidden: true });
    this.message = el("section.message");
    this.root = el("div.mistakes", { hidden: true },
      el("div", {}, this.cells, el("details.figures", { open: innerWidth >= 760 }, ...figures)),
      el("section", { "aria-label": "Captions" }, this.head, this.list, this.more),
    );
    container.append(this.bar, this.message, this.root);
    this.#brush();
    this.resized = new ResizeObserver(() => this.#scatter());
    this.resized.observe(this.canvas);
  }

  close() {
    this.question = "";
    this.resized.disconnect();
  }

  /** @param {import("./state.js").State} now */
  async update(now) {
    const question = JSON.stringify(FIELDS.map((field) => now[field]));
    if (question === this.question) return;
    this.question = question;
    this.context.hit = null;
    await this.#ask(PAGE);
  }

  async #ask(count) {
    const { question } = this;
    const answer = await api.mistakes(state(), count).catch(({ message }) => ({ state: "failed", progress: message }));
    if (question !== this.question) return;
    this.root.hidden = answer.state !== "ready";
    const { captions, pictures } = this.context.info.gallery;
    if (answer.state === "failed") {
      const { a, b } = state();
      const usual = (a || b) && button("Back to the default methods", () => go(FIRST));
      const title = captions ? "The methods cannot be compared" : "Mistakes compares methods on captions";
      this.bar.replaceChildren();
      this.#explain(title, el("p.problem", { role: "alert" }, answer.progress), this.#file(), " ", usual);
    } else if (answer.state === "running") {
      const progress = answer.progress.replace(/^waits for the gallery \((.*)\)$/, "$1");
      const [value, max] = (progress.match(/\d[\d,]*/g) ?? []).map((number) => Number(number.replaceAll(",", "")));
      const work = `First, every method ranks ${pictures.toLocaleString("en")} images for each caption, which takes a moment.`;
      const about = `This screen lists the captions that one method finds and another misses. ${work}`;
      const bar = el("progress", { "aria-label": "Progress", max, value });
      this.#explain("Comparing the methods", el("p", {}, about), bar, el("p.key", {}, `${progress} …`));
      setTimeout(() => question === this.question && this.#ask(count), ASK_AGAIN);
    } else {
      this.message.replaceChildren();
      Object.assign(this, { answer, count });
      [this.a, this.b] = [answer.a, answer.b].map((spec) => this.#title(spec));
      this.most = Math.max(2, ...answer.pairs.flatMap(([a, b]) => [a, b]));
      this.#draw(state());
    }
  }

  /** Shows a message instead of captions. */
  #explain(title, ...content) {
    if (this.message.firstChild?.textContent !== title) announce(title);
    redraw(this.message, el("h2", {}, title), ...content);
  }

  #title(spec) {
    return spec.split("+").map((name) => this.context.info.methods[name].title).join(" + ");
  }

  #draw(now) {
    const { answer, a, b } = this;
    this.#drawBar(now);
    this.#drawCells(now);
    redraw(this.range, ...this.#ranges(now));
    redraw(this.about, ...this.#words(now), ...this.#kinds(now));
    this.#scatter();
    const count = `${answer.total.toLocaleString("en")} ${answer.total === 1 ? "caption" : "captions"}`;
    const alone = (one, other) => `that ${one} finds and ${other} misses`;
    const others = { both: "that both find", neither: "that neither finds", labels: "with a doubtful label" };
    const about = { "": alone(a, b), b: alone(b, a), ...others }[now.cell];
    const orders = [["", "widest gap"], ["a", `${a}'s rank`], ["b", `${b}'s rank`], ["caption", "original order"]];
    const options = orders.map(([value, words]) => el("option", { value }, words));
    const order = select("Order", options, now.order, (value) => go({ order: value }, { replace: true }));
    const title = el("h2.grow", {}, count, el("span.words", {}, ` ${about ?? ""}`));
    const files = ["CSV", "JSON"].map((kind) => button(kind, () => this.#save(kind)));
    redraw(this.head, title, order, menu("Save", "list", ...files, this.#file()));
    redraw(this.list, ...answer.captions.map((row) => this.#row(now, row)));
    this.more.hidden = answer.captions.length >= answer.total;
    announce(title.textContent);
  }

  #drawBar(now) {
    const { answer } = this;
    const side = (own, other) => {
      const change = (value) => go({ [own]: value, [other]: answer[other] });
      const options = methodOptions(this.context.info.methods, [answer[other]]);
      const choose = select(`Method ${own.toUpperCase()}`, options, answer[own], change);
      return el("label.chooser", {}, el(`i.${own}`, { "aria-hidden": "true" }), choose);
    };
    const depths = [...new Set([...DEPTHS, answer.k])].map((k) => el("option", { value: k }, `top ${k}`));
    const chip = (words, change) => el("span.chip", {}, words, icon(`Remove ${words}`, "×", () => go(change)));
    redraw(
      this.bar,
      side("a", "b"), el("span.words", {}, "finds,"), side("b", "a"), el("span.words", {}, "misses in the"),
      select("Found in the", depths, answer.k, (k) => go({ k: Number(k) })),
      el("span.words", {}, icon("Swap A and B", "⇄", () => go({ a: answer.b, b: answer.a, within: [] }))),
      now.kind && chip(now.kind.replace(/^word:(.*)/, "“$1”"), { kind: "" }),
      now.queries && chip("queries from a file", { queries: "" }),
    );
  }

  /** A button that uploads a CSV file of queries. */
  #file() {
    const show = ({ queries }) => go({ ...FIRST, queries });
    const choose = () => api.addQueries(state(), input.files[0]).then(show, ({ message }) => toast(message));
    const input = el("input", { type: "file", accept: ".csv,text/csv", hidden: true, onchange: choose });
    const title = "A line for each query: query, image (file or id), kind";
    return el("span", {}, input, button("Queries from a CSV file", () => input.click(), "button", { title }));
  }

  #drawCells(now) {
    const { a, b } = this;
    const { counts, labels, exact, difference, low, high, p } = this.answer;
    const all = Object.values(counts).reduce((sum, count) => sum + count, 0) || 1;
    const cell = (key, label, count, title = "") => {
      const value = key === "a" ? "" : key;
      const number = el("b", {}, count.toLocaleString("en"));
      const each = toggle(`button.cell.${key}`, key, now.cell === value, () => go({ cell: value }), number, ` ${label}`);
      each.style.setProperty("--share", `${(100 * count) / all}%`);
      each.title = title;
      return each;
    };
    const why = exact ? "Another correct image ranks first" : "Every method ranks another image above the labelled one";
    redraw(this.cells, cell("both", "both find", counts.both), cell("a", `only ${a}`, counts.a),
      cell("b", `only ${b}`, counts.b), cell("neither", "neither", counts.neither),
      cell("labels", "doubtful labels", labels, why));
    const points = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
    const more = `${Math.abs(difference).toFixed(1)} points ${difference < 0 ? "fewer" : "more"}`;
    const chance = `95 % interval ${points(low)} to ${points(high)}; McNemar's test: p ${p < 0.001 ? "< 0.001" : `= ${p.toFixed(3)}`}`;
    this.test.textContent = `${a} finds ${more} than ${b} (${chance}).`;
  }

  #ranges(now) {
    const bounds = now.within.length === 4 ? now.within : [1, this.most, 1, this.most];
    const input = (name, place) => {
      const label = `${place % 2 ? "Highest" : "Lowest"} rank by ${name}`;
      const change = ({ target }) => go({ within: bounds.with(place, Math.max(1, Math.round(target.value) || 1)) });
      const shared = { "aria-label": label, "data-key": label, onchange: change };
      return el("input", { type: "number", min: "1", value: String(bounds[place]), ...shared });
    };
    const side = (name, place) => el("span", {}, `${name} `, input(name, place), "–", input(name, place + 1));
    const clear = now.within.length > 0 && button("Clear", () => go({ within: [] }), "button.link");
    return [side(this.a, 0), side(this.b, 2), clear];
  }

  #words(now) {
    const chip = ({ word, ratio }) => {
      const kind = `word:${word}`;
      const times = el("small", {}, ` ${ratio.toFixed(1)} ×`);
      return toggle("button.chip", kind, now.kind === kind, () => go({ kind: now.kind === kind ? "" : kind }), word, times);
    };
    const group = (title, words) => [
      el("h3", {}, title),
      words.length ? el("div.chips.small", {}, ...words.map(chip)) : el("p.key", {}, "No word is clearly more frequent."),
    ];
    const alone = [this.a, this.b].map((name) => `More often in captions that only ${name} finds`);
    const titles = now.within.length ? ["More often in the chosen captions", "More often in all others"] : alone;
    return [...group(titles[0], this.answer.words_a), ...group(titles[1], this.answer.words_b)];
  }

  #kinds(now) {
    const share = ({ a, b }) => a / (a + b || 1);
    const row = (each) => {
      const { kind } = each;
      const name = toggle("button.link", kind, now.kind === kind, () => go({ kind: now.kind === kind ? "" : kind }), kind);
      const bar = el("div.meter.versus", {}, el("i"));
      bar.firstChild.style.width = `${100 * share(each)}%`;
      return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, each.a), el("td", {}, bar), el("td", {}, each.b));
    };
    const heads = ["kind", `only ${this.a}`, `share of ${this.a}`, `only ${this.b}`];
    const head = el("tr", {}, ...heads.map((title) => el("th", { scope: "col" }, title)));
    const kinds = [...this.answer.kinds].sort((one, other) => share(other) - share(one));
    const box = { tabIndex: 0, role: "group", "aria-label": "Kinds" };
    return [el("h3", {}, "Kinds of captions"), el("div.scroll", box, el("table.numbers", {}, head, ...kinds.map(row)))];
  }

  #row(now, row) {
    const { a, b } = this.answer;
    const fresh = { q: row.text, like: null, upload: "", more: [], less: [], words: null, view: null, by: "" };
    const tile = (image, title, spec, right) => {
      const inspect = () => go({ ...fresh, image, method: spec.split("+")[0], inspect: "words" });
      const label = `Inspect ${title} for “${row.text}”${right ? ", right" : ""}`;
      const thumb = el("img", { alt: "", loading: "lazy", src: api.imageUrl(now, image) });
      const framed = el("span.tile", { "data-right": right }, thumb, el("span.rank"));
      return el("button.found", { type: "button", "aria-label": label, onclick: inspect }, framed, el("small", {}, title));
    };
    const tiles = [tile(row.first_a, `${this.a}'s first`, a, row.rank_a === 1)];
    tiles.push(tile(row.first_b, `${this.b}'s first`, b, row.rank_b === 1), tile(row.image, "labelled", a, true));
    if (now.cell === "labels") tiles.push(tile(row.suspect, this.answer.exact ? "also right" : "also right?", a, this.answer.exact));
    const compare = () => go({ ...fresh, image: null, methods: [a, b], screen: "compare" });
    const title = { title: "Compare both methods", "data-key": `caption ${row.caption}` };
    return el("li", {},
      button(row.text, compare, "button.link", title),
      el("div.found-by", {}, ...tiles),
      el("p.key", {}, `${row.kind} · right at ${row.rank_a} by ${this.a}, at ${row.rank_b} by ${this.b}`),
    );
  }

  /** The logarithmic scale: ranks to pixels, and back. */
  #scale() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const [wide, tall, most] = [width - EDGE - 2 * PAD, height - FOOT - 2 * PAD, Math.log(this.most)];
    const x = (rank) => EDGE + PAD + (wide * Math.log(rank)) / most;
    const y = (rank) => PAD + tall - (tall * Math.log(rank)) / most;
    const ranks = (px, py) => [(px - EDGE - PAD) / wide, (PAD + tall - py) / tall].map((part) => Math.exp(part * most));
    return { width, height, x, y, ranks };
  }

  /** Draws a point for each pair of ranks, whose area shows the number of captions. */
  #scatter() {
    const { canvas, answer } = this;
    if (!answer || !canvas.clientWidth) return;
    canvas.ariaLabel = `Ranks of the first right image of ${answer.pairs.length} groups of captions, by ${this.a} and by ${this.b}`;
    const { width, height, x, y } = this.#scale();
    [canvas.width, canvas.height] = [width * devicePixelRatio, height * devicePixelRatio];
    const pen = canvas.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    Object.assign(pen, { font: "12px system-ui, sans-serif", textAlign: "right" });
    const style = getComputedStyle(canvas);
    const [line, quiet, ink] = ["--line", "--quiet", "--ink"].map((name) => style.getPropertyValue(name));
    for (let rank = 1; rank <= this.most; rank *= 10) {
      pen.fillStyle = line;
      pen.fillRect(EDGE, y(rank), width - EDGE, 1);
      pen.fillRect(x(rank), 0, 1, height - FOOT);
      pen.fillStyle = quiet;
      pen.fillText(String(rank), EDGE - 5, y(rank) + 4);
      pen.fillText(String(rank), x(rank) + 4, height - FOOT + 14);
    }
    pen.fillText(`rank by ${this.a} →`, width, height - 3);
    pen.textAlign = "left";
    pen.fillText(`↑ by ${this.b}`, 0, 11);
    pen.globalAlpha = 0.6;
    for (const [a, b, count] of answer.pairs) {
      const [found, also] = [a <= answer.k, b <= answer.k];
      pen.fillStyle = found === also ? quiet : found ? "#2563eb" : "#d97706";
      pen.beginPath();
      pen.arc(x(a), y(b), Math.min(PAD - 2, 1.8 * Math.sqrt(count)), 0, 7);
      pen.fill();
    }
    const [a0, a1, b0, b1] = state().within;
    const [x0, y0, x1, y1] = this.drag ?? [x(a0) - 5, y(b0) + 5, x(a1) + 5, y(b1) - 5]; // NaN draws nothing
    Object.assign(pen, { globalAlpha: 1, strokeStyle: ink });
    pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
  }

  /** Selects ranks by dragging over the scatter plot; a click selects all. */
  #brush() {
    const { canvas } = this;
    canvas.onpointerdown = ({ offsetX, offsetY, pointerId }) => {
      canvas.setPointerCapture(pointerId);
      this.drag = [offsetX, offsetY, offsetX, offsetY];
    };
    canvas.onpointermove = ({ offsetX, offsetY }) => {
      if (this.drag) this.drag.splice(2, 2, offsetX, offsetY);
      this.#scatter();
    };
    canvas.onpointercancel = () => (this.drag = null);
    canvas.onpointerup = () => {
      const [x0, y0, x1, y1] = this.drag ?? [0, 0, 0, 0];
      this.drag = null;
      const [low, high] = [[Math.min(x0, x1), Math.max(y0, y1)], [Math.max(x0, x1), Math.min(y0, y1)]];
      const [first, last] = [low, high].map((corner) => this.#scale().ranks(...corner));
      const bounds = [0, 1].flatMap((i) => [Math.max(1, Math.ceil(first[i])), Math.floor(last[i])]);
      const some = bounds[0] <= bounds[1] && bounds[2] <= bounds[3];
      go(some ? { within: bounds, cell: "all" } : { within: [] });
      this.#scatter();
    };
  }

  async #save(kind) {
    closeMenus();
    const now = state();
    const json = async () => new Blob([JSON.stringify(await api.mistakes(now, ALL), null, 1)], { type: "application/json" });
    const made = kind === "CSV" ? api.mistakes(now, ALL, "csv") : json();
    made.then((content) => save(`polyview-mistakes.${kind.toLowerCase()}`, content), ({ message }) => toast(message));
  }
}
