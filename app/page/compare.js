/**
 * Compare: one query in 2 to 8 methods. A column a method; the selected image stands below the
 * columns as every method sees it.
 */

import * as api from "./api.js";
import { announce, el, save, toast } from "./dom.js";
import { COLOURS, drawEvidence, strongestWord } from "./evidence.js";
import { drawSheet, toCsv, toJson } from "./export.js";
import { go, state } from "./state.js";

const FIRST = ["vse_infty", "mv_vse", "avse", "mvam"];
const DEPTHS = [10, 30, 100]; // images in a column
const COLUMNS = [2, 8];
const TILE = 180; // pixels of a tile's evidence

/** @param {HTMLElement} container @param {import("./main.js").Context} context */
export function render(container, context) {
  return new Compare(container, context);
}

/** The columns that a state means. @param {import("./state.js").State} now @param {Record<string, any>} methods of the pack @returns {string[]} */
export function columnsOf(now, methods) {
  if (now.methods.length) return now.methods;
  const names = Object.keys(methods);
  const first = FIRST.filter((name) => names.includes(name));
  return [...first, ...names.filter((name) => !first.includes(name))].slice(0, 4);
}

class Compare {
  constructor(container, context) {
    this.context = context;
    this.depth = 0;
    this.answer = null;
    this.question = "";
    /** @type {Map<string, any>} evidence of each column, or why it has none */
    this.evidence = new Map();
    /** @type {Map<string, HTMLElement>} tiles by "column image" */
    this.tiles = new Map();
    this.bar = el("div.bar");
    this.jump = el("div.jump", { role: "group", "aria-label": "Go to a column" });
    this.columns = el("div.columns", { role: "group", "aria-label": "Images by method", tabIndex: -1 });
    this.more = el("button.more", { type: "button", hidden: true, onclick: () => this.#deeper() });
    this.dock = el("section.dock", { hidden: true, "aria-label": "The selected image as every method sees it" });
    container.append(el("div.compare", {}, this.bar, this.jump, this.columns, this.more, this.dock));
    this.keys = (event) => this.#key(event);
    this.outside = (event) => closeMenus(event.target);
    addEventListener("keydown", this.keys, true); // before Escape takes the selection away
    addEventListener("click", this.outside);
  }

  close() {
    removeEventListener("keydown", this.keys, true);
    removeEventListener("click", this.outside);
    document.getElementById("notes")?.replaceChildren();
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
      else this.#refuse("Type what to look for.");
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
    if (!this.answer) this.#ghosts(methods);
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
    this.words = [];
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
    const button = el("button", { type: "button", onclick: () => go({ methods: [] }) }, "Back to the usual methods");
    this.columns.replaceChildren(el("div", {}, el("p.problem", { role: "alert" }, sentence), reset && button));
    for (const part of [this.bar, this.jump]) part.replaceChildren();
    this.dock.hidden = true;
    this.more.hidden = true;
    document.getElementById("notes")?.replaceChildren();
  }

  async #deeper() {
    this.depth += 1;
    await this.#ask(state(), columnsOf(state(), this.context.info.methods));
  }

  /** Empty columns hold the room of the answer. */
  #ghosts(methods) {
    const titles = methods.map((key) => this.context.info.methods[key]?.title ?? key);
    this.#bar(methods);
    this.columns.style.setProperty("--columns", String(methods.length));
    const tiles = () => Array.from({ length: DEPTHS[0] }, () => el("span.tile"));
    this.columns.replaceChildren(
      ...titles.map((title) =>
        el("section.column", { "aria-hidden": "true" }, el("header", {}, el("h2", {}, title)), el("div.tiles", {}, ...tiles())),
      ),
    );
  }

  #draw() {
    const { answer } = this;
    const now = state();
    this.#bar(answer.columns.map((column) => column.method));
    this.tiles.clear();
    this.columns.style.setProperty("--columns", String(answer.columns.length));
    const ranks = answer.columns.map((column) => column.best_true_rank ?? Infinity);
    const best = Math.min(...ranks);
    const sections = answer.columns.map((column, c) => this.#column(now, column, c, ranks[c] === best && best < Infinity));
    this.columns.replaceChildren(...sections);
    this.jump.replaceChildren(
      ...answer.columns.map((column, c) =>
        el(
          "button.chip",
          { type: "button", onclick: () => sections[c].scrollIntoView({ block: "nearest", inline: "start" }) },
          `${column.title} ${column.best_true_rank ?? ""}`,
        ),
      ),
    );
    const next = DEPTHS[this.depth + 1];
    this.more.hidden = !next || answer.columns.every((column) => column.hits.length < DEPTHS[this.depth]);
    this.more.textContent = `Show the first ${next}`;
    this.#notes();
  }

  #column(now, column, c, best) {
    const { answer } = this;
    const left = answer.columns[c - 1]?.title ?? "";
    const alone = new Set(answer.only_found[column.method].map((place) => place.image_id));
    const about = [column.paper || "averaged scores"];
    if (answer.truth) about.push(`${column.right_in_list} of ${answer.truth.image_ids.length} right images in the first ${answer.k}`);
    if (column.r_precision !== null) about.push(`R-precision ${percent(column.r_precision)}`);
    about.push(`${column.ms} ms`);
    const drop = el(
      "button.quiet.round",
      { type: "button", "aria-label": `Remove ${column.title}`, onclick: () => this.#change((all) => all.filter((key) => key !== column.method)) },
      "×",
    );
    const head = el(
      "header",
      { title: about.join("\n") },
      el("h2", {}, column.title),
      el(`span.at${best ? ".best" : ""}`, {}, rightAt(column), best && el("span", { "aria-hidden": "true" }, " ★")),
      alone.size > 0 && el("span.alone", { title: `Only ${column.title} lists ${answer.truth ? "these right images" : "these images"}` }, `${alone.size} only here`),
      answer.columns.length > COLUMNS[0] && drop,
    );
    const tiles = column.hits.map((hit) => {
      const caption = hit.captions?.[0] ?? hit.file.split("/").pop();
      const { sign, words } = movement(hit, left);
      const only = alone.has(hit.image_id);
      const label = [`${hit.rank}: ${caption}`, hit.right && "right", words, only && `only ${column.title} lists it`];
      const tile = el(
        "button.tile",
        {
          type: "button",
          "aria-label": label.filter(Boolean).join("; "),
          "aria-pressed": "false",
          "data-image": hit.image_id,
          title: `${caption}\nscore ${hit.score.toFixed(3)}${words ? `\n${words}` : ""}`,
          onclick: () => go({ image: hit.image_id, view: null }),
        },
        el("img", { alt: "", loading: "lazy", draggable: false, src: api.imageUrl(now, hit.image_id) }),
        el("span.rank", {}, String(hit.rank), sign && el("span.move", { "data-way": sign[0] }, ` ${sign}`)),
        only && el("span.badge", {}, "only here"),
      );
      tile.toggleAttribute("data-right", hit.right === true);
      this.tiles.set(`${column.method} ${hit.image_id}`, tile);
      return tile;
    });
    return el("section.column", { "aria-label": `${column.title} ${rightAt(column)}`, "data-method": column.method }, head, el("div.tiles", {}, ...tiles));
  }

  /** Examples, methods to add, agreement and files. */
  #bar(methods) {
    const { info, examples } = this.context;
    const open = this.bar.querySelector("details[open] > summary")?.textContent;
    const add = el("select", { "aria-label": "Add a method", disabled: methods.length >= COLUMNS[1] }, el("option", { value: "" }, "+ method"));
    const option = (value, title) => !methods.includes(value) && el("option", { value }, title);
    const names = Object.entries(info.methods);
    add.append(...names.map(([key, { title }]) => option(key, title)).filter(Boolean));
    const pairs = names.flatMap(([a, one], i) => names.slice(i + 1).map(([b, other]) => option(`${a}+${b}`, `${one.title} + ${other.title}`)));
    add.append(el("optgroup", { label: "Averages" }, ...pairs));
    add.addEventListener("change", () => this.#change((all) => [...all, add.value]));
    const curated = examples.curated.map((each) =>
      el(
        "button",
        { type: "button", onclick: () => this.#example(each) },
        el("span", {}, each.caption),
        el("small", {}, each.why),
      ),
    );
    this.bar.replaceChildren(
      ...[
        curated.length && menu("Examples", "list", ...curated),
        add,
        this.answer && el("span.grow"),
        this.answer && menu("?", "agreement", ...this.#agreement()),
        this.answer && menu("Save", "list", ...["PNG", "CSV", "JSON"].map((kind) => el("button", { type: "button", onclick: () => this.#save(kind) }, kind))),
      ].filter(Boolean),
    );
    for (const summary of this.bar.querySelectorAll("summary")) {
      if (summary.textContent === open) summary.parentElement?.setAttribute("open", "");
    }
  }

  #example({ caption, winner }) {
    closeMenus(null);
    const all = columnsOf(state(), this.context.info.methods);
    const methods = all.includes(winner) ? state().methods : [...all, winner].slice(-COLUMNS[1]);
    go({ q: caption, methods, like: null, more: [], less: [], image: null, words: null, view: null });
  }

  #change(edit) {
    go({ methods: edit(columnsOf(state(), this.context.info.methods)) });
  }

  #agreement() {
    const { columns, overlap, tau, k, truth } = this.answer;
    const table = (title, values, show) =>
      el(
        "table",
        {},
        el("caption", {}, title),
        el("tr", {}, el("td"), ...columns.map((column) => el("th", { scope: "col" }, column.title))),
        ...values.map((row, i) =>
          el("tr", {}, el("th", { scope: "row" }, columns[i].title), ...row.map((value, j) => el("td", {}, i === j ? "" : show(value)))),
        ),
      );
    return [
      table(`Overlap: share of the first ${k} that two methods have in common`, overlap, percent),
      table("Kendall's tau over the images that either lists: 1 the same order, −1 the opposite", tau, (value) => (value === null ? "–" : value.toFixed(2))),
      el("p", {}, "▲3 and ▼2: places higher or lower than in the column to the left; new: not listed there."),
      truth && el("p", {}, "The query is a caption of the collection, so the right images are known; they are marked ✓."),
    ].filter(Boolean);
  }

  async #save(kind) {
    closeMenus(null);
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
    for (const tile of this.tiles.values()) {
      const own = Number(tile.dataset.image) === now.image;
      tile.toggleAttribute("data-selected", own);
      tile.setAttribute("aria-pressed", String(own));
    }
    this.#showDock(now);
    this.#notes();
    this.#lightAll(now);
    await this.#explain(now);
  }

  /** Asks each method for the evidence of its images that have none yet, in one request. */
  async #explain(now) {
    const { answer } = this;
    await Promise.all(
      answer.columns.map(async (column) => {
        const known = this.evidence.get(column.method);
        const ids = column.hits.map((hit) => hit.image_id);
        if (now.image !== null && !ids.includes(now.image)) ids.push(now.image);
        const missing = known?.problem ? [] : ids.filter((id) => !known?.asked.has(id)).slice(-100);
        if (!missing.length) return;
        const entry = known ?? { asked: new Set(), by: new Map(), words: null };
        for (const id of missing) entry.asked.add(id);
        this.evidence.set(column.method, entry);
        const [pack, method] = column.method.includes("/") ? column.method.split("/") : [now.pack, column.method];
        try {
          const found = await api.explainHits({ ...now, pack, more: [], less: [] }, missing, method);
          Object.assign(entry, { words: found.words, grid: found.grid, sheet: found.sheet });
          found.images.forEach((id, i) =>
            entry.by.set(id, { cells: found.cells[i], whole: found.whole_sentence[i], box: found.boxes[i], score: found.scores[i], frames: found.frames[i] }),
          );
        } catch (error) {
          entry.problem = error.message;
        }
        if (answer !== this.answer) return;
        if (!this.words.length && entry.words?.length) this.words = entry.words;
        this.#notes();
        this.#showDock(state());
        this.#lightAll(state());
      }),
    );
  }

  /** Indices of the words that are lit. */
  #chosen(now) {
    if (now.words !== null) return now.words.filter((word) => word < this.words.length).slice(0, 4);
    const cells = [...this.evidence.values()].flatMap((entry) => (sameWords(entry, this.words) ? [...entry.by.values()].map((each) => each.cells) : []));
    return this.words.length && cells.length ? [strongestWord(cells)] : [];
  }

  /** Maps of one image in one column. */
  #maps(entry, id, chosen) {
    const own = entry.by.get(id);
    if (!own) return [];
    const field = (each, word) => each.cells.map((cell, n) => (word === null ? cell.reduce((sum, value) => sum + value, each.whole[n] && !each.whole[n].length ? each.whole[n] : 0) : cell[word]));
    const words = entry.words.length ? chosen.map((word) => (sameWords(entry, this.words) ? word : entry.words.indexOf(this.words[word]))) : [null];
    return words.flatMap((word, w) => {
      if (word === -1) return [];
      let most = 1e-9;
      for (const each of entry.by.values()) most = Math.max(most, ...field(each, word));
      const raw = field(own, word);
      return [{ values: raw.map((value) => Math.max(0, value) / most), colour: COLOURS[w], sum: raw.reduce((sum, value) => sum + value, 0) }];
    });
  }

  /** Draws the evidence of every tile, a few at a time. */
  async #lightAll(now) {
    const turn = (this.turn = {});
    const chosen = this.#chosen(now);
    const key = JSON.stringify([chosen, this.words]);
    for (const column of this.answer.columns) {
      const entry = this.evidence.get(column.method);
      if (!entry?.words || entry.sheet) continue;
      for (const hit of column.hits) {
        const tile = this.tiles.get(`${column.method} ${hit.image_id}`);
        const drawn = `${key} ${entry.by.size}`;
        if (!tile || tile.dataset.drawn === drawn || !entry.by.has(hit.image_id)) continue;
        const image = /** @type {HTMLImageElement} */ (tile.querySelector("img"));
        if (!image.complete) await new Promise((done) => ["load", "error"].forEach((kind) => image.addEventListener(kind, done, { once: true })));
        if (turn !== this.turn) return;
        if (!image.naturalWidth) continue;
        const canvas = tile.querySelector("canvas") ?? el("canvas", { "aria-hidden": "true" });
        this.#paint(canvas, image, TILE, entry, hit.image_id, chosen);
        if (!canvas.isConnected) image.after(canvas);
        tile.dataset.drawn = drawn;
        await new Promise((done) => setTimeout(done));
        if (turn !== this.turn) return;
      }
    }
  }

  #paint(canvas, image, height, entry, id, chosen) {
    canvas.height = height;
    canvas.width = Math.round((height * (image.naturalWidth ?? image.width)) / (image.naturalHeight ?? image.height));
    drawEvidence(canvas, image, this.#maps(entry, id, chosen), entry.grid, entry.by.get(id).box);
  }

  #showDock(now) {
    this.dock.hidden = now.image === null;
    if (now.image === null) return;
    const id = now.image;
    const { columns, ranks, truth } = this.answer;
    if (this.docked !== this.answer || this.dockedImage !== id) {
      this.docked = this.answer;
      this.dockedImage = id;
      const hit = columns.flatMap((column) => column.hits).find((each) => each.image_id === id);
      const right = truth?.image_ids.includes(id);
      this.maps = columns.map((column, c) => {
        const rank = ranks[id]?.[c];
        const image = el("img", { alt: "", src: api.imageUrl(now, id) });
        const button = el(
          "button.map",
          { type: "button", onclick: () => go({ method: column.method.split("/").pop(), inspect: "views", view: null }) },
          el("span.stage", {}, image, el("canvas", { "aria-hidden": "true" })),
          el("b", {}, column.title),
          el("span", {}, rank ? `rank ${rank}` : `not in the first ${this.answer.k}`),
          el("small"),
        );
        return { button, image, column };
      });
      this.dock.replaceChildren(
        el(
          "header",
          {},
          el("span.grow", {}, `${right ? "✓ right: " : ""}${captionOf(hit, this.answer.query) ?? `image ${id}`}`),
          el("button.quiet.round", { type: "button", "aria-label": "Close", onclick: () => go({ image: null, view: null }) }, "×"),
        ),
        el("div.maps", {}, ...this.maps.map((map) => map.button)),
      );
    }
    const chosen = this.#chosen(now);
    for (const map of this.maps) this.#drawMap(map, id, chosen);
  }

  async #drawMap({ button, image, column }, id, chosen) {
    const entry = this.evidence.get(column.method);
    const own = entry?.by.get(id);
    const small = button.querySelector("small");
    if (entry?.problem) small.textContent = entry.problem;
    if (!own) return;
    const maps = this.#maps(entry, id, chosen);
    const word = entry.words.length && chosen.length === 1 ? this.words[chosen[0]] : "";
    small.textContent = word && maps.length ? `“${word}” ${maps[0].sum.toFixed(2)} of ${own.score.toFixed(2)}` : `score ${own.score.toFixed(2)}`;
    const source = entry.sheet && own.frames ? await sheet(own.frames, entry.sheet) : image;
    if (source === image) await image.decode().catch(() => {});
    if (this.dockedImage !== id || !(source.naturalWidth ?? source.width)) return;
    this.#paint(button.querySelector("canvas"), source, 280, entry, id, chosen);
  }

  /** Between the query and the columns: words, the example's story, what was not understood. */
  #notes() {
    const notes = document.getElementById("notes");
    if (!notes || !this.answer) return;
    const now = state();
    const chosen = this.#chosen(now);
    const chips = this.words.map((word, index) => {
      const at = chosen.indexOf(index);
      const chip = el("button.chip", { type: "button", "aria-pressed": String(at >= 0), onclick: () => this.#toggle(index) }, word);
      if (at >= 0) chip.style.setProperty("--word", COLOURS[at]);
      return chip;
    });
    const example = this.context.examples.curated.find((each) => each.caption === now.q);
    const rest = now.filters.length + now.more.length + now.less.length > 0 || now.upload;
    const sentences = [
      example?.why,
      this.answer.remark,
      rest && "Compare looks at words, or one image of the collection; filters and examples stay in Explore.",
    ];
    const focused = notes.contains(document.activeElement) ? document.activeElement?.textContent : "";
    notes.replaceChildren(el("div.row", {}, ...chips, ...sentences.filter(Boolean).map((text) => el("span", {}, text))));
    if (focused) chips.find((chip) => chip.textContent === focused)?.focus();
  }

  #toggle(index) {
    const chosen = this.#chosen(state());
    const words = chosen.includes(index) ? chosen.filter((word) => word !== index) : [...chosen, index].slice(-4);
    go({ words }, { replace: true });
  }

  /** Arrows move between tiles; Escape closes an open menu. */
  #key(event) {
    if (event.key === "Escape" && closeMenus(null)) event.stopImmediatePropagation();
    const tile = document.activeElement?.closest?.(".columns .tile");
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!tile || !way) return;
    event.preventDefault();
    const middle = (element) => {
      const { left, top, width, height } = element.getBoundingClientRect();
      return [left + width / 2, top + height / 2];
    };
    const [x, y] = middle(tile);
    let [nearest, least] = [null, Infinity];
    for (const other of this.tiles.values()) {
      const [dx, dy] = middle(other).map((value, axis) => value - [x, y][axis]);
      const ahead = dx * way[0] + dy * way[1];
      const distance = ahead + 3 * Math.abs(dx * way[1] + dy * way[0]);
      if (ahead > 8 && distance < least) [nearest, least] = [other, distance];
    }
    nearest?.focus();
  }
}

const percent = (value) => `${Math.round(100 * value)} %`;
const rightAt = (column) => (column.best_true_rank === null ? "" : `right at ${column.best_true_rank}`);
/** The caption that was asked for, where it is one of the image's. */
const captionOf = (hit, query) => hit?.captions?.find((caption) => caption === query) ?? hit?.captions?.[0];
const sameWords = (entry, words) => JSON.stringify(entry.words) === JSON.stringify(words);

/** How an image moved from the column to the left, as a sign and in words. */
function movement({ move, new: fresh }, left) {
  if (fresh) return { sign: "new", words: `not listed by ${left}` };
  if (!move) return { sign: "", words: "" };
  const words = `${Math.abs(move)} ${move > 0 ? "higher" : "lower"} than in ${left}`;
  return { sign: `${move > 0 ? "▲" : "▼"}${Math.abs(move)}`, words };
}

function menu(title, kind, ...content) {
  const label = title === "?" ? "How far the methods agree" : undefined;
  return el(`details.menu.${kind}`, {}, el("summary", { "aria-label": label }, title), el("div.sheet", {}, ...content));
}

/** Closes open menus that do not hold an element. @returns {boolean} whether one was open */
function closeMenus(element) {
  let closed = false;
  for (const open of document.querySelectorAll("details.menu[open]")) {
    if (element && open.contains(element)) continue;
    open.removeAttribute("open");
    closed = true;
  }
  return closed;
}

/** The frames of a clip as one image, as the method read them. */
async function sheet(frames, [rows, columns]) {
  const size = 112;
  const canvas = el("canvas", { width: columns * size, height: rows * size });
  const pen = canvas.getContext("2d");
  await Promise.all(
    frames.map(async (frame, i) => {
      const image = el("img", { src: api.imageUrl(state(), frame) });
      await image.decode().catch(() => {});
      if (image.naturalWidth) pen.drawImage(image, (i % columns) * size, Math.floor(i / columns) * size, size, size);
    }),
  );
  return canvas;
}
