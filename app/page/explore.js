/** Explore: results of a query with the evidence of its words, and the selected image beside them. */

import * as api from "./api.js";
import { announce, el } from "./dom.js";
import { COLOURS, drawEvidence, normalise, strongestWord } from "./evidence.js";
import { Grid } from "./grid.js";
import { methodOf } from "./main.js";
import { Panel } from "./panel.js";
import { go, state } from "./state.js";

const PAGE = 60; // hits asked for at a time
const MOST = 1000;
const EXPLAINED = 100; // images in one request for evidence

/** @param {HTMLElement} container @param {import("./main.js").Context} context */
export function render(container, context) {
  const results = el("section", { "aria-label": "Results" });
  const panel = el("aside.panel", { hidden: true, "aria-label": "Selected image" });
  const split = el("div.split", {}, results, panel);
  container.append(split);
  return new Explore(context, split, results, panel);
}

class Explore {
  constructor(context, split, results, panel) {
    this.context = context;
    this.split = split;
    this.k = PAGE;
    this.answer = null;
    /** @type {{words: string[], terms: any[], grid: [number, number], by: Map<number, any>}|null} */
    this.evidence = null;
    this.grid = new Grid(results, {
      address: (id) => api.imageUrl(state(), id),
      choose: (hit) => go({ image: hit.image_id, view: null }),
      more: () => this.#more(),
      appear: () => this.#explain(),
    });
    this.panel = new Panel(panel, context, (step) => this.#step(step));
    this.keys = (event) => this.#key(event);
    addEventListener("keydown", this.keys);
  }

  close() {
    removeEventListener("keydown", this.keys);
    this.grid.destroy();
    document.getElementById("notes")?.replaceChildren();
  }

  /** @param {import("./state.js").State} now @param {import("./state.js").State|null} before */
  async update(now, before) {
    if (!now.q && now.like === null && !now.more.length && !this.context.upload.image) {
      this.#openExample(now);
      return;
    }
    const question = questionOf(now, this.context);
    if (question !== this.question) {
      this.question = question;
      this.k = PAGE;
      await this.#ask(now);
      if (before?.q !== now.q) scrollTo({ top: 0 });
    } else {
      this.#draw(now);
    }
  }

  /** The first screen is an answered example. */
  #openExample(now) {
    const { curated, queries } = this.context.examples;
    const method = methodOf(now);
    const example = curated.find((each) => each.ranks[method] === 1);
    const q = example?.caption ?? queries[0];
    if (q) go({ q }, { replace: true });
    else this.grid.show([]);
  }

  async #ask(now) {
    const wanted = { ...now, method: methodOf(now) };
    try {
      const { image } = this.context.upload;
      this.answer = await (image ? api.searchByImage(wanted, image, this.k) : api.search(wanted, this.k));
    } catch (error) {
      document.getElementById("notes")?.replaceChildren(el("p.problem", {}, error.message));
      this.grid.show([]);
      return;
    }
    this.evidence = null;
    this.grid.clear();
    this.grid.show(this.answer.hits);
    announce(`${this.answer.hits.length} images for ${now.q || "this image"}`);
    const first = this.answer.hits[0];
    if (state().image === null && first && innerWidth >= 760) go({ image: first.image_id }, { replace: true });
    else this.#draw(state());
    await this.#explain();
  }

  async #more() {
    if (!this.answer || this.k >= MOST || this.answer.hits.length < this.k) return;
    this.k = Math.min(MOST, this.k + PAGE);
    await this.#ask(state());
  }

  /** Asks for the evidence of the tiles that have none yet, in one request. */
  async #explain() {
    const now = state();
    if (!now.q || this.context.upload.image || this.asking) return;
    const missing = this.grid.hits
      .map((hit) => hit.image_id)
      .filter((id) => !this.evidence?.by.has(id) && this.grid.tiles.get(id)?.querySelector("img[src]"))
      .slice(0, EXPLAINED);
    if (!missing.length) return;
    this.asking = true;
    const question = this.question;
    try {
      const answer = await api.explainHits(now, missing, methodOf(now), "evidence");
      if (question !== this.question) return;
      this.evidence ??= { words: answer.words, terms: answer.terms, grid: answer.grid, by: new Map() };
      answer.images.forEach((id, i) =>
        this.evidence?.by.set(id, { cells: answer.cells[i], box: answer.boxes[i], base: answer.base[i] }),
      );
      this.#draw(state());
    } catch {
      this.grid.clear(); // images without evidence are still an answer
    } finally {
      this.asking = false;
    }
  }

  /** Indices of the words that are shown. */
  words(now) {
    if (now.words !== null) return now.words.filter((word) => word < (this.evidence?.words.length ?? 0)).slice(0, 4);
    const cells = [...(this.evidence?.by.values() ?? [])].map((each) => each.cells);
    return cells.length ? [strongestWord(cells)] : [];
  }

  #draw(now) {
    const open = now.image !== null && Boolean(this.answer);
    this.split.toggleAttribute("data-open", open);
    this.grid.select(now.image);
    this.#notes(now);
    const words = this.words(now);
    if (this.evidence && words.length) this.#drawTiles(words);
    else this.grid.clear();
    const hit = open ? this.grid.current(now.image) : null;
    this.panel.update(now, hit, this.answer, this.evidence, words);
  }

  async #drawTiles(words) {
    const { by, grid } = this.evidence;
    const ids = [...by.keys()];
    const maps = words.map((word) => normalise(ids.map((id) => by.get(id).cells), word));
    const question = this.question;
    for (const [i, id] of ids.entries()) {
      const layers = await this.grid.layers(id);
      if (question !== this.question) return;
      if (!layers) continue;
      const [image, canvas] = layers;
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      const shown = maps.map((map, w) => ({ values: map[i], colour: COLOURS[w] }));
      drawEvidence(canvas, image, shown, grid, by.get(id).box);
    }
  }

  /** What stands between the query and the results: words, hints, examples. */
  #notes(now) {
    const notes = document.getElementById("notes");
    if (!notes || !this.answer) return;
    const chosen = this.words(now);
    const chips = (this.evidence?.words ?? []).map((word, index) => {
      const place = chosen.indexOf(index);
      const chip = el(
        "button.chip",
        { type: "button", "aria-pressed": String(place >= 0), onclick: () => this.#toggle(index) },
        word,
      );
      if (place >= 0) chip.style.setProperty("--word", COLOURS[place]);
      return chip;
    });
    const hints = (this.answer.unknown ?? []).map(({ word, nearest }) =>
      nearest.length
        ? el("span", {}, `"${word}" is unknown. Did you mean `, this.#askFor(now.q.replace(word, nearest[0]), nearest[0]), "?")
        : el("span", {}, `"${word}" is unknown.`),
    );
    const right = this.answer.hits.some((hit) => hit.satisfies);
    if (this.answer.matches === false && !right) hints.push(el("span", {}, "Nothing here seems to match; these are the nearest."));
    if (this.answer.remark) hints.push(el("span", {}, this.answer.remark));
    const tries = now.q ? [] : this.context.examples.queries.slice(0, 3).map((q) => this.#askFor(q, q));
    notes.replaceChildren(el("div.row", {}, ...chips, ...hints, ...tries));
  }

  #askFor(query, words) {
    const anchor = el("a", { href: "#" }, words);
    anchor.addEventListener("click", (event) => {
      event.preventDefault();
      go({ q: query, image: null, words: null });
    });
    return anchor;
  }

  #toggle(index) {
    const words = this.words(state());
    const next = words.includes(index) ? words.filter((word) => word !== index) : [...words, index].slice(-4);
    go({ words: next }, { replace: true });
  }

  #step(step) {
    const ids = this.grid.hits.map((hit) => hit.image_id);
    const place = ids.indexOf(state().image);
    const next = ids[Math.min(ids.length - 1, Math.max(0, place + step))];
    if (next === undefined) return;
    go({ image: next, view: null }, { replace: true });
    this.grid.tiles.get(next)?.scrollIntoView({ block: "nearest" });
  }

  #key(event) {
    if (event.target.matches("input, select, textarea") || document.querySelector("dialog[open]")) return;
    if (event.key === "ArrowRight") this.#step(1);
    else if (event.key === "ArrowLeft") this.#step(-1);
    else if (event.key === "Enter" && event.target === document.body && state().image !== null) {
      go({ inspect: "words" });
    }
  }
}

/** What makes an answer another one. */
function questionOf(now, context) {
  const { q, like, more, less, filters, pack, collection } = now;
  return JSON.stringify([q, methodOf(now), like, more, less, filters, pack, collection, context.upload.image?.length]);
}
