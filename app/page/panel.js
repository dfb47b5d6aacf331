/** The selected image with its words and views: next to the results or, on a phone, in a sheet. */

import * as api from "./api.js";
import { button, el, icon, redraw, toggle } from "./dom.js";
import { ATTENTION_COLOUR, MAX_VIEWS, attentionOf, drawAttention, drawStrip, stretch } from "./evidence.js";
import { captionOf } from "./grid.js";
import { methodOf } from "./main.js";
import { confidence, wordChips } from "./notes.js";
import { go, state } from "./state.js";

const [MAX_WIDTH, THUMBNAIL] = [840, 320]; // pixels: of the canvas; of the longer side of a thumbnail

/** Explains why no views are listed. */
export const CELLS = "Each cell of the image is a view. Search with words to see the cells that match.";

export class Panel {
  /**
   * @param {HTMLElement} container
   * @param {import("./main.js").Context} context
   * @param {import("./grid.js").Grid} grid the results
   * @param {(step: number) => void} step selects the next or previous result
   */
  constructor(container, context, grid, step) {
    Object.assign(this, { container, context, grid, step });
    /** The word or view under the pointer: {word} or {view}. */
    this.preview = null;
  }

  /**
   * @param {import("./state.js").State} now
   * @param {any} hit the selected hit; null for none
   * @param {import("./explanation.js").Explanation|null} explanation
   * @param {number[]} words indices of the shown words
   */
  update(now, hit, explanation, words) {
    this.container.hidden = !hit;
    if (!hit) {
      this.key = "";
      return;
    }
    Object.assign(this, { hit, explanation, words });
    const key = JSON.stringify([hit.image_id, hit.rank, methodOf(now), now.q, now.pack, now.collection]);
    if (key !== this.key) {
      this.key = key;
      this.viewKey = "";
      this.views = null;
      this.preview = null;
      this.#build(now);
    }
    this.#loadViews(now);
    this.#drawChips(now);
    this.#draw();
  }

  async #loadViews(now) {
    const method = now.by || methodOf(now);
    const key = `${this.key} ${method}`;
    if (key === this.viewKey) return;
    this.viewKey = key;
    await this.grid.images(); // results load first
    const views = await api.views(now, this.hit.image_id, method, [], "panel").catch(() => null);
    if (key !== this.viewKey) return;
    this.views = views;
    this.#drawChips(state());
    this.#draw();
  }

  #build(now) {
    const { hit } = this;
    const caption = captionOf(hit, now.q);
    const large = Math.max(hit.width ?? 0, hit.height ?? 0) >= THUMBNAIL;
    this.image = el("img", { alt: caption, src: api.imageUrl(now, hit.image_id, large) });
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.stage = el("div.stage", {}, this.image, this.canvas);
    this.stage.style.setProperty("--ratio", String((hit.width || 1) / (hit.height || 1)));
    if (hit.seconds !== null && hit.seconds !== undefined) this.stage.append(this.#playButton(now));
    this.wordRow = el("div.chips.small", { role: "group", "aria-label": "Words" });
    this.sentence = el("p.caption");
    this.methodRow = el("div.chips.small", { role: "group", "aria-label": "Method whose views are shown" });
    this.viewRow = el("div.chips.views", { role: "group", "aria-label": "Views" });
    this.remark = el("p.caption");
    const sure = confidence(hit, this.context.info.methods[methodOf(now)]);
    const similar = { like: hit.image_id, q: "", upload: "", more: [], less: [], image: null, words: null, view: null };
    const action = (label, change) => button(label, () => go(change()));
    const same = this.grid.alike.get(hit.rank)?.length;
    const example = (kind) => () => ({ [kind]: [...new Set([...state()[kind], hit.image_id])].slice(-10), image: null });
    const views = [el("h3", {}, "Views of"), this.methodRow, this.viewRow];
    const chooser = el("div", {}, el("h3", {}, "Words"), this.wordRow, ...views);
    const why = "By the calibration of this method on its validation split";
    const badge = sure && el(`span.sure.${sure}`, { title: why }, sure);
    const right = hit.satisfies && el("span.right", {}, "✓ known answer");
    this.container.replaceChildren(
      el("header", {},
        el("span.grow", {}, `#${hit.rank} `, right, badge),
        icon("Previous image", "‹", () => this.step(-1)),
        icon("Next image", "›", () => this.step(1)),
        button("Inspect", () => go({ inspect: state().view === null ? "words" : "views" }), "button.quiet"),
        icon("Close", "×", () => go({ image: null, view: null })),
      ),
      el("div.beside", {}, this.stage, chooser),
      this.sentence,
      this.remark,
      legend(),
      el("div.actions", {},
        action("Compare methods", () => ({ screen: "compare" })),
        action("Similar", () => similar),
        action("More like this", example("more")),
        action("Less like this", example("less")),
        same && button(`${same} nearly the same`, () => this.grid.unfold(hit.rank)),
      ),
      el("p.caption", {}, hit.captions?.length ? `Captions: ${hit.captions.slice(0, 5).join(" · ")}` : caption),
    );
  }

  #playButton(now) {
    const { hit, image, canvas } = this;
    const play = (event) => {
      canvas.remove();
      image.replaceWith(clipPlayer(now, hit));
      event.target.remove();
    };
    return button("▶ Play", play, "button.play");
  }

  #drawChips(now) {
    const preview = (change) => {
      this.preview = change;
      this.#draw();
    };
    redraw(
      this.wordRow,
      ...wordChips(now, this.explanation, this.words, this.hit.image_id, (word) => preview(word === null ? null : { word })),
    );
    this.sentence.textContent = this.explanation?.sentence(this.hit.image_id, this.words) ?? "";
    const method = now.by || methodOf(now);
    redraw(
      this.methodRow,
      ...Object.entries(this.context.info.methods).map(([by, { title, views }]) => {
        const choose = () => go({ by, view: null }, { replace: true });
        return toggle("button.chip", by, by === method, choose, title, views > 1 && el("small", {}, ` ${views}`));
      }),
    );
    const count = this.context.info.methods[method]?.views ?? 1;
    const views = this.views?.method === method ? this.views : null;
    const winner = views?.winner ?? null;
    const all = views?.views.map((each) => each.view) ?? [...Array(count).keys()];
    const listed = all.length > MAX_VIEWS ? [] : all;
    redraw(
      this.viewRow,
      ...listed.map((view) => {
        const own = now.view === view;
        const choose = () => go({ view: own ? null : view }, { replace: true });
        const label = `${view + 1}${view === winner && count > 1 ? " ★" : ""}`;
        const chip = toggle("button.chip", `view ${view}`, own, choose, label);
        chip.ariaLabel = `View ${view + 1}${view === winner ? ", the best" : ""}`;
        chip.onpointerenter = () => preview({ view });
        chip.onpointerleave = () => preview(null);
        return chip;
      }),
    );
    const same = views?.collapsed && "These views are nearly the same; maps show their difference from the mean view.";
    this.remark.textContent = same || (views && !listed.length && CELLS) || "";
  }

  async #draw() {
    const { image, canvas, hit, explanation } = this;
    await image.decode().catch(() => {});
    if (image !== this.image || !image.naturalWidth) return;
    const now = state();
    const scale = Math.min(1, MAX_WIDTH / image.naturalWidth);
    canvas.width = Math.round(image.naturalWidth * Math.max(scale, Math.min(2, 420 / image.naturalWidth)));
    canvas.height = Math.round((canvas.width * image.naturalHeight) / image.naturalWidth);
    const view = this.preview?.view ?? (this.preview ? null : now.view);
    const attention = view === null || !this.views ? null : attentionOf(this.views, view);
    if (attention) {
      if (this.views.sheet) drawStrip(canvas, [{ values: stretch(attention), colour: ATTENTION_COLOUR }]);
      else drawAttention(canvas, image, attention, this.views.grid, this.views.box);
      return;
    }
    const words = this.preview?.word === undefined ? this.words : [this.preview.word];
    if (explanation?.by.has(hit.image_id) && words.length) explanation.draw(canvas, image, hit.image_id, words, true);
  }
}

/** The meaning of the two kinds of maps. @returns {HTMLElement} */
export const legend = () =>
  el("div.legend", {},
    el("span", {}, el("i"), "what the word matched"),
    el("span", {}, el("i.attention"), "where the view looks"),
  );

/** A player that starts a clip at the moment that matched. @param {import("./state.js").State} now @param {any} hit */
export function clipPlayer(now, hit) {
  const address = api.clipUrl(now, hit.image_id);
  if (/\.(webp|gif|apng|png)$/i.test(hit.file)) return el("img", { src: address, alt: `The clip ${hit.file}, playing` });
  const video = el("video", { src: address, controls: true, autoplay: true, muted: true, playsInline: true });
  video.setAttribute("aria-label", `The clip ${hit.file}`);
  video.addEventListener("loadedmetadata", () => (video.currentTime = hit.seconds ?? 0), { once: true });
  return video;
}
