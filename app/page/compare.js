/**
 * Compare: one query with 2 to 8 methods, a column for each. Below the columns, the selected image
 * with the evidence of every method.
 */

import * as api from "./api.js";
import { announce, button, closeMenus, el, icon, menu, nearest, redraw, save, select, toast } from "./dom.js";
import { Explanation, decimal } from "./explanation.js";
import { drawSheet, toCsv, toJson } from "./export.js";
import { canvasOver, captionOf, clock, justify } from "./grid.js";
import { wordChips } from "./notes.js";
import { go, state } from "./state.js";

const FIRST = ["vse_infty", "mv_vse", "avse", "mvam"];
const DEPTHS = [10, 30, 100]; // images in a column
const COLUMNS = [2, 8];
const ROW = 150; // pixels of a row of tiles at most
const MAP = 280; // pixels of the selected image's map
const EXPLAINED = 100; // images in one request for evidence

/** @param {HTMLElement} container @param {import("./main.js").Context} context */
export function render(container, context) {
  return new Compare(container, context);
}

/** The methods of the columns. @param {import("./state.js").State} now @param {Record<string, any>} methods of the pack @returns {string[]} */
export function columnsOf(now, methods) {
  if (now.methods.length) return now.methods;
  const names = Object.keys(methods);
  const first = FIRST.filter((name) => names.includes(name));
  return [...first, ...names.filter((name) => !first.includes(name))].slice(0, 4);
}

/** Options for methods and averages of two. @param {Record<string, any>} methods of the pack @param {string[]} without */
export function methodOptions(methods, without) {
  const option = (value, title) => !without.includes(value) && el("option", { value }, title);
  const names = Object.entries(methods);
  const averages = names.flatMap(([a, one], i) =>
    names.slice(i + 1).map(([b, other]) => option(`${a}+${b}`, `${one.title} + ${other.title}`)),
  );
  const group = el("optgroup", { label: "Averages" }, ...averages);
  return [...names.map(([key, { title }]) => option(key, title)), group];
}

class Compare {
  constructor(container, context) {
    this.context = context;
    this.depth = 0;
    this.answer = null;
    this.question = "";
    /** For each column: the requested ids, the explanation, or why there is none. @type {Map<string, any>} */
    this.evidence = new Map();
    /** @type {Map<string, {element: any, hit: any}[]>} tiles of each column */
    this.tiles = new Map();
    this.bar = el("div.bar");
    this.jump = el("div.jump", { role: "group", "aria-label": "Go to a column" });
    this.columns = el("div.columns", { role: "group", "aria-label": "Images by method", tabIndex: -1 });
    this.more = button("", () => this.#deeper(), "button.more", { hidden: true });
    this.dock = el("section.dock", { hidden: true, "aria-label": "The selected image with the evidence of every method" });
    container.append(el("div.compare", {}, this.bar, this.jump, this.columns, this.more, this.dock));
    this.resized = new ResizeObserver(() => this.#layout());
    this.resized.observe(this.columns);
    this.keys = (event) => this.#key(event);
    addEventListener("keydown", this.keys);
  }

  close() {
    removeEventListener("keydown", this.keys);
    this.resized.disconnect();
    this.question = "";
  }

  /** @param {import("./state.js").State} now @param {import("./state.js").State|null} before */
  async update(now, before) {
    const methods = columnsOf(now, this.context.info.methods);
    if (methods.length < COLUMNS[0]) {
      this.#refuse(`${this.context.info.pack.title} has one method; open a pack with several to compare.`);
      return;
    }
    if (!now.q && now.like === null) {
      const { curated, queries } = this.context.examples;
      const q = (curated.find((each) => methods.includes(each.winner)) ?? curated[0])?.caption ?? queries[0];
      if (q) go({ q }, { replace: true });
      else this.#refuse("Type a query.");
      return;
    }
    const question = JSON.stringify([methods, now.q, now.like, now.pack, now.collection]);
    if (question === this.question) {
      if (this.answer) await this.#select(now);
      return;
    }
    this.question = question;
    this.depth = 0;
    if (before && before.q !== now.q) scrollTo({ top: 0 });
    if (!this.answer) this.#bar(methods);
    await this.#ask(now, methods);
  }

  async #ask(now, methods) {
    const { question } = this;
    let answer;
    try {
      answer = await api.compare(now, methods, DEPTHS[this.depth]);
    } catch (error) {
      if (question === this.question) this.#refuse(error.message, now.methods.length > 0);
      return;
    }
    if (question !== this.question) return;
    this.answer = answer;
    this.evidence = new Map();
    this.#draw();
    announce(answer.columns.map((column) => `${column.title} ${rightAt(column) || "answered"}`).join(", "));
    const listed = answer.columns.flatMap((column) => column.hits);
    const first = listed.find((hit) => hit.right) ?? listed[0];
    if (state().image === null && first && innerWidth >= 760) go({ image: first.image_id }, { replace: true });
    else await this.#select(state());
  }

  #refuse(sentence, reset = false) {
    this.question = "";
    this.answer = null;
    const usual = button("Back to the default methods", () => go({ methods: [] }));
    this.columns.replaceChildren(el("div", {}, el("p.problem", { role: "alert" }, sentence), reset && usual));
    for (const part of [this.bar, this.jump]) part.replaceChildren();
    this.dock.hidden = this.more.hidden = true;
    document.getElementById("notes")?.replaceChildren();
  }

  async #deeper() {
    this.depth += 1;
    await this.#ask(state(), columnsOf(state(), this.context.info.methods));
  }

  #layout() {
    const width = (this.columns.querySelector(".tiles")?.clientWidth ?? 0) - 1;
    if (width > 0) for (const tiles of this.tiles.values()) justify(tiles, width, ROW);
  }

  #draw() {
    const { columns } = this.answer;
    this.#bar(columns.map((column) => column.method));
    this.tiles.clear();
    this.columns.style.setProperty("--columns", String(columns.length));
    const ranks = columns.map((column) => column.best_true_rank ?? Infinity);
    const best = Math.min(...ranks);
    const sections = columns.map((column, c) => this.#column(column, c, ranks[c] === best && best < Infinity));
    this.columns.replaceChildren(...sections);
    const jump = (column, c) => {
      const show = () => sections[c].scrollIntoView({ block: "nearest", inline: "start" });
      return button(`${column.title} ${column.best_true_rank ?? ""}`, show, "button.chip");
    };
    this.jump.replaceChildren(...columns.map(jump));
    const next = DEPTHS[this.depth + 1];
    this.more.hidden = !next || columns.every((column) => column.hits.length < DEPTHS[this.depth]);
    this.more.textContent = `Show the first ${next}`;
    this.#layout();
  }

  #column(column, c, best) {
    const { truth, k, columns, only_found: found } = this.answer;
    const left = columns[c - 1]?.title ?? "";
    const right = rightAt(column);
    const alone = new Set(found[column.method].map((place) => place.image_id));
    const about = [column.paper || "averaged scores"];
    if (truth) about.push(`${column.right_in_list} of ${truth.image_ids.length} right images in the first ${k}`);
    if (column.r_precision !== null) about.push(`R-precision ${percent(column.r_precision)}`);
    about.push(`${column.ms} ms`);
    const drop = () => this.#change((all) => all.filter((key) => key !== column.method));
    const only = `Only ${column.title} lists ${truth ? "these right images" : "these images"}`;
    const head = el("header", { title: about.join("\n") },
      el("h2", {}, column.title),
      right && el(`span.at${best ? ".best" : ""}`, {}, right, best && el("span", { "aria-hidden": "true" }, " ★")),
      alone.size > 0 && el("span.alone", { title: only }, `${alone.size} only here`),
      columns.length > COLUMNS[0] && icon(`Remove ${column.title}`, "×", drop),
    );
    const tiles = column.hits.map((hit) => ({ hit, element: this.#tile(column, hit, left, alone.has(hit.image_id)) }));
    this.tiles.set(column.method, tiles);
    const body = el("div.tiles", {}, ...tiles.map(({ element }) => element));
    const label = `${column.title} ${right}`;
    return el("section.column", { "aria-label": label, "data-method": column.method }, head, body);
  }

  #tile(column, hit, left, only) {
    const caption = captionOf(hit, state().q);
    const { sign, words } = movement(hit, left);
    const label = [`${hit.rank}: ${caption}`, hit.right && "right", words, only && `only ${column.title} lists it`];
    const moment = hit.seconds === undefined || hit.seconds === null ? "" : clock(hit.seconds);
    const badge = [moment, only && "only here"].filter(Boolean).join(" · ");
    const properties = {
      type: "button",
      "aria-label": label.filter(Boolean).join("; "),
      "aria-pressed": "false",
      "data-image": hit.image_id,
      title: `${caption}\nscore ${hit.score.toFixed(3)}${words ? `\n${words}` : ""}`,
      onclick: () => go({ image: hit.image_id, view: null }),
    };
    const tile = el("button.tile", properties,
      el("img", { alt: "", loading: "lazy", draggable: false, src: api.imageUrl(state(), hit.image_id) }),
      el("span.rank", {}, String(hit.rank), sign && el("span.move", { "data-way": sign[0] }, ` ${sign}`)),
      badge && el("span.badge", {}, badge),
    );
    tile.toggleAttribute("data-right", hit.right === true);
    tile.toggleAttribute("data-only", only);
    return tile;
  }

  /** Examples, methods to add, agreement and files. */
  #bar(methods) {
    const { info, examples } = this.context;
    const open = this.bar.querySelector("details[open] > summary")?.textContent;
    const options = [el("option", { value: "" }, "+ method"), ...methodOptions(info.methods, methods)];
    const add = select("Add a method", options, "", (method) => this.#change((all) => [...all, method]));
    add.disabled = methods.length >= COLUMNS[1];
    const example = (each) =>
      el("button", { type: "button", onclick: () => this.#example(each) }, each.caption, el("small", {}, each.why));
    const parts = [examples.curated.length && menu("Examples", "list", ...examples.curated.map(example)), add];
    if (this.answer) {
      const agreement = menu("?", "agreement", ...this.#agreement());
      agreement.firstChild.ariaLabel = "Agreement of the methods";
      const files = ["PNG", "CSV", "JSON"].map((kind) => button(kind, () => this.#save(kind)));
      parts.push(el("span.grow"), agreement, menu("Save", "list", ...files));
    }
    this.bar.replaceChildren(...parts.filter(Boolean));
    for (const summary of this.bar.querySelectorAll("summary")) {
      if (summary.textContent === open) summary.parentElement?.setAttribute("open", "");
    }
  }

  #example({ caption, winner }) {
    closeMenus();
    const all = columnsOf(state(), this.context.info.methods);
    const methods = all.includes(winner) ? state().methods : [...all, winner].slice(-COLUMNS[1]);
    go({ q: caption, methods, like: null, more: [], less: [], image: null, words: null, view: null });
  }

  #change(edit) {
    go({ methods: edit(columnsOf(state(), this.context.info.methods)) });
  }

  #agreement() {
    const { columns, overlap, tau, k, truth } = this.answer;
    const table = (title, values, show) => {
      const row = (cells, i) => {
        const shown = cells.map((value, j) => el("td", {}, i === j ? "" : show(value)));
        return el("tr", {}, el("th", { scope: "row" }, columns[i].title), ...shown);
      };
      const head = columns.map((column) => el("th", { scope: "col" }, column.title));
      return el("table.numbers", {}, el("caption", {}, title), el("tr", {}, el("td"), ...head), ...values.map(row));
    };
    const order = "Kendall's tau over the images that either method lists: 1 is the same order, −1 the opposite";
    return [
      table(`Overlap: share of the first ${k} that two methods have in common`, overlap, percent),
      table(order, tau, (value) => (value === null ? "–" : decimal(value))),
      el("p.key", {}, "▲3 and ▼2: ranks higher or lower than in the column to the left; new: not listed there."),
      truth && el("p.key", {}, "The query is a caption of the collection: the correct images are known, and marked ✓."),
    ];
  }

  async #save(kind) {
    closeMenus();
    const words = this.answer.query.toLowerCase().match(/[a-z0-9]+/g) ?? ["comparison"];
    const name = `polyview-${words.join("-").slice(0, 60)}.${kind.toLowerCase()}`;
    const title = this.context.info.gallery.title;
    if (kind === "CSV") save(name, toCsv(this.answer));
    else if (kind === "JSON") save(name, toJson(this.answer, title));
    else {
      const now = state();
      const file = await drawSheet(this.answer, title, (id) => api.imageUrl(now, id));
      if (file) save(name, file);
      else toast("The browser could not draw the sheet.");
    }
  }

  /** Shows what the state selects: tiles, maps and words. */
  async #select(now) {
    this.context.hit = this.#hit(now.image) ?? null;
    const file = this.context.hit?.file; // another frame of the same clip is the same hit
    for (const { element, hit } of [...this.tiles.values()].flat()) {
      const own = hit.image_id === now.image || (file !== undefined && hit.file === file);
      element.toggleAttribute("data-selected", own);
      element.setAttribute("aria-pressed", String(own));
    }
    this.#show(now);
    await Promise.all(this.answer.columns.map((column) => this.#explain(now, column)));
  }

  #show(now) {
    this.#notes(now);
    this.#showDock(now);
    this.#lightAll(now);
  }

  #hit(id) {
    return this.answer.columns.flatMap((column) => column.hits).find((hit) => hit.image_id === id);
  }

  /** Requests the evidence of a column's images that have none yet. */
  async #explain(now, column) {
    const { answer } = this;
    const entry = this.evidence.get(column.method) ?? { requested: new Set(), explanation: null, problem: "" };
    this.evidence.set(column.method, entry);
    const ids = [...column.hits.map((hit) => hit.image_id), ...(now.image === null ? [] : [now.image])];
    const missing = [...new Set(ids)].filter((id) => !entry.requested.has(id)).slice(-EXPLAINED);
    if (!missing.length || entry.problem) return;
    for (const id of missing) entry.requested.add(id);
    const [pack, method] = column.method.includes("/") ? column.method.split("/") : [now.pack, column.method];
    try {
      const found = await api.explainHits({ ...now, pack, more: [], less: [] }, missing, method);
      if (entry.explanation) entry.explanation.add(found);
      else entry.explanation = new Explanation(found);
    } catch (error) {
      entry.problem = error.message;
    }
    if (answer === this.answer) this.#show(state());
  }

  /** The first explanation that has maps; its words are shown as chips. */
  get #lead() {
    const entries = this.answer.columns.map((column) => this.evidence.get(column.method));
    const first = entries.find((entry) => !entry?.problem && !entry?.explanation?.remark);
    return first?.explanation ?? null;
  }

  /** The indices of the chosen words among a column's own words. */
  #words(now, explanation) {
    const lead = this.#lead;
    if (now.plain || !lead || explanation.remark) return [];
    const same = lead.words.join(" ") === explanation.words.join(" ");
    return lead.shown(now.words).map((word) => (same ? word : explanation.words.indexOf(lead.words[word])));
  }

  /** Draws the evidence of every tile, a few at a time. */
  async #lightAll(now) {
    const turn = (this.turn = {});
    for (const column of this.answer.columns) {
      const { explanation } = this.evidence.get(column.method) ?? {};
      if (!explanation) continue;
      const words = this.#words(now, explanation);
      for (const { element, hit } of this.tiles.get(column.method) ?? []) {
        const image = element.querySelector("img");
        if (element.dataset.drawn === words.join() || !explanation.by.has(hit.image_id)) continue;
        await image.decode().catch(() => {});
        if (turn !== this.turn) return;
        if (!image.naturalWidth) continue;
        if (words.length) explanation.draw(canvasOver(image), image, hit.image_id, words);
        else element.querySelector("canvas")?.remove();
        element.dataset.drawn = words.join();
        await new Promise((done) => setTimeout(done));
        if (turn !== this.turn) return;
      }
    }
  }

  #showDock(now) {
    const id = now.image;
    this.dock.hidden = id === null;
    if (id === null) return;
    const { columns, ranks, truth, query, k } = this.answer;
    if (this.docked !== this.answer || this.dockedImage !== id) {
      this.docked = this.answer;
      this.dockedImage = id;
      const hit = this.#hit(id);
      const ratio = (hit?.width || 1) / (hit?.height || 1);
      this.maps = columns.map((column, c) => {
        const rank = ranks[id]?.[c];
        const image = el("img", { alt: "", src: api.imageUrl(now, id) });
        const inspect = () => go({ method: column.method.split("/").pop(), inspect: "views", view: null });
        const element = el("button.map", { type: "button", onclick: inspect },
          el("span.stage", { style: `--ratio: ${ratio}` }, image),
          el("b", {}, column.title),
          el("span", {}, rank ? `rank ${rank}` : `not in the first ${k}`),
          el("small"),
        );
        return { element, image, column };
      });
      const right = truth?.image_ids.includes(id) ? "✓ right: " : "";
      const caption = hit ? captionOf(hit, query) : `image ${id}`;
      const close = icon("Close", "×", () => go({ image: null, view: null }));
      const maps = el("div.maps", {}, ...this.maps.map(({ element }) => element));
      this.dock.replaceChildren(el("header", {}, el("span.grow", {}, right + caption), close), maps);
    }
    for (const map of this.maps) this.#drawMap(now, map, id);
  }

  async #drawMap(now, { element, image, column }, id) {
    const { explanation, problem } = this.evidence.get(column.method) ?? {};
    const small = element.querySelector("small");
    if (problem) small.textContent = problem;
    const own = explanation?.by.get(id);
    if (!own) return;
    const words = this.#words(now, explanation);
    const [word] = words;
    const sum = explanation.contributions(id)[word];
    small.textContent =
      words.length === 1 && sum !== undefined
        ? `“${explanation.words[word]}” ${decimal(sum)} of ${decimal(own.score)}`
        : `score ${decimal(own.score)}`;
    await image.decode().catch(() => {});
    if (this.dockedImage !== id || !image.naturalWidth) return;
    if (words.length) explanation.draw(canvasOver(image, MAP), image, id, words);
    else element.querySelector("canvas")?.remove();
  }

  /** The notes between the query and the columns: words, the example's explanation, remarks. */
  #notes(now) {
    const lead = this.#lead;
    const chosen = lead ? this.#words(now, lead) : [];
    const chips = wordChips(now, lead, chosen, now.image ?? this.answer.columns[0].hits[0]?.image_id ?? null);
    const ignored = now.filters.length + now.more.length + now.less.length > 0 || now.upload;
    const sentences = [
      this.context.examples.curated.find((each) => each.caption === now.q)?.why,
      this.answer.remark,
      ...new Set([...this.evidence.values()].map((entry) => entry.explanation?.remark)),
      ignored && "Compare uses words or one image of the collection; filters and examples apply only in Explore.",
    ];
    const texts = sentences.filter(Boolean).map((text) => el("span", {}, text));
    redraw(document.getElementById("notes"), el("div.row", {}, ...chips, ...texts));
  }

  /** Moves between tiles with the arrow keys. */
  #key(event) {
    const tile = document.activeElement?.closest?.(".columns .tile");
    if (!tile || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    nearest(tile, this.columns.querySelectorAll(".tile"), event.key)?.focus();
  }
}

const percent = (value) => `${Math.round(100 * value)} %`;
const rightAt = (column) => (column.best_true_rank === null ? "" : `right at ${column.best_true_rank}`);

/** Describes the move of an image from the column to the left, as a sign and in words. */
function movement({ move, new: fresh }, left) {
  if (fresh) return { sign: "new", words: `not listed by ${left}` };
  if (!move) return { sign: "", words: "" };
  const words = `${Math.abs(move)} ${move > 0 ? "higher" : "lower"} than in ${left}`;
  return { sign: `${move > 0 ? "▲" : "▼"}${Math.abs(move)}`, words };
}
