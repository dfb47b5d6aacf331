/** Explore: the results of a query with the evidence of its words, and the selected image. */

import * as api from "./api.js";
import { announce, button, el, menu, toast } from "./dom.js";
import { Explanation } from "./explanation.js";
import { Grid, canvasOver } from "./grid.js";
import { methodOf } from "./main.js";
import { confidence, drawNotes, factSelects } from "./notes.js";
import { Panel } from "./panel.js";
import { Selection } from "./selection.js";
import { go, state, storedImage } from "./state.js";

const PAGE = 60; // hits in a request
const MAX_HITS = 1000;
const WIDE = 760; // pixels; in a wider window, the panel is next to the results
const EXPLAINED = 100; // images in one request for evidence
const COMPUTED = 6; // the same, if evidence requires encoding the images again

/** @param {HTMLElement} container @param {import("./main.js").Context} context */
export function render(container, context) {
  return new Explore(container, context);
}

class Explore {
  constructor(container, context) {
    this.context = context;
    this.k = PAGE;
    this.answer = null;
    /** @type {Explanation|null} */
    this.explanation = null;
    this.bar = el("div.bar");
    const tiles = el("section", { "aria-label": "Results" });
    const panel = el("aside.panel", { hidden: true, "aria-label": "Selected image" });
    this.split = el("div.split", {}, el("div", {}, this.bar, tiles), panel);
    container.append(this.split);
    this.grid = new Grid(tiles, {
      address: (id) => api.imageUrl(state(), id),
      confidence: (hit) => confidence(hit, context.info.methods[methodOf(state())]),
      choose: (hit, event) => this.#choose(hit, event),
      more: () => this.#more(),
      appear: () => {
        this.#drawTiles();
        this.#explain();
      },
    });
    const mark = () => this.grid.mark(this.selection.ids);
    this.selection = new Selection(() => this.grid.hits, mark);
    this.panel = new Panel(panel, context, this.grid, (step) => this.#step(step));
    this.keys = (event) => this.#key(event);
    addEventListener("keydown", this.keys);
  }

  close() {
    removeEventListener("keydown", this.keys);
    this.grid.destroy();
  }

  /** @param {import("./state.js").State} now @param {import("./state.js").State|null} before */
  async update(now, before) {
    if (!now.q && now.like === null && !now.more.length && !now.upload) {
      await this.#openExample(now);
      return;
    }
    const { q, like, upload, more, less, filters, pack, collection } = now;
    const question = JSON.stringify([q, methodOf(now), like, upload, more, less, filters, pack, collection]);
    if (question === this.question) {
      this.#draw(now);
      return;
    }
    Object.assign(this, { question, k: PAGE, explanation: null, loading: false });
    if (before) scrollTo({ top: 0 });
    await this.#ask(now);
  }

  /** Opens an example query whose first hit is correct. */
  async #openExample(now) {
    const { curated, queries } = this.context.examples;
    const method = methodOf(now);
    const captions = curated.filter((each) => each.ranks[method] === 1).map(({ caption }) => caption);
    let [q] = queries;
    for (const query of [...captions, ...queries]) {
      const answer = await api.search({ ...now, q: query, method }, 1).catch(() => null);
      if (!answer || answer.matches === false || answer.hits[0]?.satisfies === false) continue;
      q = query;
      break;
    }
    const typed = /** @type {any} */ (document.getElementById("query")).value;
    if (q && !typed && now === state()) go({ q }, { replace: true });
  }

  async #ask(now) {
    const question = this.question;
    const image = storedImage(now.upload);
    if (now.upload && !image) {
      this.#fail("The query image of this link is stored only in the tab where it was chosen. Choose the image again.");
      return;
    }
    try {
      this.answer = await api.search({ ...now, method: methodOf(now) }, this.k, image);
    } catch (error) {
      this.#fail(error.message);
      return;
    }
    if (question !== this.question) return;
    const first = this.answer.hits[0];
    const select = state().image === null && first && innerWidth >= WIDE;
    const listed = this.answer.hits.some((hit) => hit.image_id === state().image);
    this.split.toggleAttribute("data-open", Boolean(select || listed)); // before the tiles are laid out
    this.grid.clear();
    this.grid.unfolded.clear();
    this.grid.show(this.answer.hits);
    const count = this.answer.hits.length;
    announce(count ? `${count} images for ${now.q || "this image"}` : "No image matches these filters.");
    if (select) go({ image: first.image_id }, { replace: true });
    else this.#draw(state());
    await this.#explain();
  }

  #fail(sentence) {
    this.answer = null;
    document.getElementById("notes")?.replaceChildren(el("p.problem", {}, sentence));
    this.grid.show([]);
    this.panel.update(state(), null, null, []);
    announce(sentence);
  }

  async #more() {
    if (!this.answer || this.loading || this.k >= MAX_HITS || this.answer.hits.length < this.k) return;
    this.loading = true;
    const question = this.question;
    const k = Math.min(MAX_HITS, 2 * this.k);
    const now = { ...state(), method: methodOf(state()) };
    const answer = await api.search(now, k, storedImage(now.upload)).catch((error) => toast(error.message));
    this.loading = false;
    if (!answer || question !== this.question) return;
    Object.assign(this, { k, answer });
    this.grid.show(answer.hits);
    this.#draw(state());
  }

  /** Requests the evidence of the visible tiles that have none yet. */
  async #explain() {
    if (this.explaining === this.question || !this.answer) return;
    const missing = this.grid.hits
      .map((hit) => hit.image_id)
      .filter((id) => this.grid.visible.has(id) && !this.explanation?.by.has(id))
      .slice(0, this.context.info.methods[methodOf(state())]?.features_add_up ? COMPUTED : EXPLAINED);
    if (!missing.length) return;
    const question = (this.explaining = this.question);
    const now = state();
    try {
      if (this.explained) await this.grid.images(); // images load before evidence, except at the start
      if (question !== this.question) return; // its request would abort that of the newer question
      const answer = await api.explainHits(now, missing, methodOf(now), { lane: "evidence", image: storedImage(now.upload) });
      if (question !== this.question) return;
      if (this.explanation) this.explanation.add(answer);
      else this.explanation = new Explanation(answer);
      this.explained = true;
      this.#draw(state());
    } catch {
      return this.grid.clear(); // images without evidence are still an answer
    } finally {
      if (this.explaining === question) this.explaining = "";
    }
    this.#explain();
  }

  #words(now) {
    return now.plain || !this.explanation ? [] : this.explanation.shown(now.words);
  }

  #draw(now) {
    const hit = now.image !== null && this.answer ? (this.grid.current(now.image) ?? null) : null;
    this.split.toggleAttribute("data-open", Boolean(hit));
    this.grid.select(now.image);
    const words = this.#words(now);
    if (this.answer) drawNotes(now, this.answer, this.explanation, words, this.context);
    this.#drawBar(now);
    if (!words.length) this.grid.clear();
    this.#drawTiles();
    this.context.hit = hit;
    this.panel.update(now, hit, this.explanation, words);
  }

  async #drawTiles() {
    const { explanation, question } = this;
    const words = this.#words(state());
    if (!explanation || !words.length) return;
    const key = words.join();
    for (const id of [...this.grid.visible]) {
      const tile = this.grid.tiles.get(id);
      if (!explanation.by.has(id) || tile?.querySelector("canvas")?.dataset.words === key) continue;
      const image = /** @type {HTMLImageElement|null} */ (tile?.querySelector("img[src]"));
      await new Promise((done) => setTimeout(done)); // the page stays responsive
      if (question !== this.question || key !== this.#words(state()).join()) return;
      if (!image?.naturalWidth) continue;
      const canvas = canvasOver(image);
      canvas.dataset.words = key;
      explanation.draw(canvas, image, id, words);
    }
  }

  /** Draws the evidence switch, the filters and the selection. */
  #drawBar(now) {
    const key = JSON.stringify([now.plain, now.filters, now.pack, now.collection]);
    if (this.barKey === key) return;
    this.barKey = key;
    const facts = factSelects(this.context.info.facts ?? {});
    const evidence = el("input", {
      type: "checkbox",
      checked: !now.plain,
      onchange: () => go({ plain: !state().plain }, { replace: true }),
    });
    const title = now.filters.length ? `Filter (${now.filters.length})` : "Filter";
    this.bar.replaceChildren(
      el("label.switch", {}, evidence, "Evidence"),
      ...(facts.length ? [menu(title, "facts", ...facts)] : []),
      button("Select", () => this.selection.toggle(), "button.quiet"),
      this.selection.bar,
    );
  }

  #choose(hit, event) {
    if (this.selection.active || event.ctrlKey || event.metaKey || event.shiftKey) this.selection.flip(hit.image_id);
    else go({ image: hit.image_id, view: null });
  }

  #step(step) {
    const ids = this.grid.hits.map((hit) => hit.image_id);
    const place = ids.indexOf(state().image);
    this.#select(ids[Math.min(ids.length - 1, Math.max(0, place + step))]);
  }

  #select(id) {
    const tile = this.grid.tiles.get(id);
    if (!tile) return;
    const focused = this.grid.container.contains(document.activeElement);
    go({ image: id, view: null }, { replace: true });
    tile.scrollIntoView({ block: "nearest" });
    if (focused) tile.focus({ preventScroll: true });
  }

  #key(event) {
    if (event.target.matches("input, select, textarea, video") || document.querySelector("dialog[open]")) return;
    const inGrid = this.grid.container.contains(document.activeElement);
    if (event.key === "ArrowRight") this.#step(1);
    else if (event.key === "ArrowLeft") this.#step(-1);
    else if (inGrid && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.#select(this.grid.neighbour(state().image ?? -1, event.key));
    } else if (event.key === "x" && state().image !== null) this.selection.flip(state().image);
    else if (event.key === "Enter" && state().image !== null) {
      const tile = document.activeElement?.closest?.("[data-selected]");
      if (!tile && document.activeElement !== document.body) return;
      event.preventDefault();
      go({ inspect: "words" });
    }
  }
}
