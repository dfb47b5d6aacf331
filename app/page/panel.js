/** The selected image: its words and its views, beside the results or as a sheet on a phone. */

import * as api from "./api.js";
import { el } from "./dom.js";
import { COLOURS, drawAttention, drawEvidence } from "./evidence.js";
import { methodOf } from "./main.js";
import { go, state } from "./state.js";

export class Panel {
  /** @param {HTMLElement} container @param {import("./main.js").Context} context @param {(step: number) => void} step */
  constructor(container, context, step) {
    this.container = container;
    this.context = context;
    this.step = step;
  }

  /** @param {any} now @param {any} hit @param {any} answer @param {any} evidence @param {number[]} words */
  async update(now, hit, answer, evidence, words) {
    this.container.hidden = !hit;
    if (!hit) return;
    const key = `${hit.image_id} ${methodOf(now)} ${now.q}`;
    if (key !== this.key) {
      this.key = key;
      this.views = null;
      this.#build(now, hit);
      api
        .views(now, hit.image_id, methodOf(now))
        .then((views) => {
          if (key !== this.key) return;
          this.views = views;
          this.#viewChips(state());
          this.#draw(state(), hit, evidence, words);
        })
        .catch(() => {});
    }
    this.#viewChips(now);
    await this.#draw(now, hit, evidence, words);
  }

  #build(now, hit) {
    this.image = el("img", { alt: hit.captions?.[0] ?? hit.file, src: api.imageUrl(now, hit.image_id, true) });
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.stage = el("div.stage", {}, this.image, this.canvas);
    this.stage.style.aspectRatio = `${hit.width || 1} / ${hit.height || 1}`;
    this.chips = el("div.chips", { role: "group", "aria-label": "Views" });
    const move = (step, sign, label) =>
      el("button.quiet", { type: "button", "aria-label": label, onclick: () => this.step(step) }, sign);
    this.container.replaceChildren(
      el(
        "header",
        {},
        el("span.grow", {}, `#${hit.rank}${hit.satisfies ? " ✓ known answer" : ""}`),
        move(-1, "‹", "Previous image"),
        move(1, "›", "Next image"),
        el("button.quiet", { type: "button", "aria-label": "Inspect", onclick: () => go({ inspect: "words" }) }, "⛶"),
        el("button.quiet", { type: "button", "aria-label": "Close", onclick: () => go({ image: null, view: null }) }, "×"),
      ),
      this.stage,
      el("div.legend", {}, el("span", {}, el("i"), "what the word matched"), el("span", {}, el("i.attention"), "where the view looks")),
      el("h3", {}, "Views"),
      this.chips,
      el("p.caption", {}, hit.captions?.[0] ?? hit.file),
      el(
        "div.actions",
        {},
        el("button", { type: "button", onclick: () => go({ screen: "compare" }) }, "Compare methods"),
        el("button", { type: "button", onclick: () => go({ like: hit.image_id, q: "", image: null, words: null }) }, "Similar"),
      ),
    );
  }

  #viewChips(now) {
    if (!this.views) return;
    this.chips.replaceChildren(
      ...this.views.views.map(({ view }) =>
        el(
          "button.chip",
          {
            type: "button",
            "aria-label": `View ${view + 1}`,
            "aria-pressed": String(now.view === view),
            onclick: () => go({ view: now.view === view ? null : view }, { replace: true }),
          },
          `${view + 1}${view === this.views.winner ? " ★" : ""}`,
        ),
      ),
    );
  }

  async #draw(now, hit, evidence, words) {
    const { image, canvas } = this;
    await image.decode().catch(() => {});
    if (image !== this.image || !image.naturalWidth) return;
    const scale = Math.min(1, 840 / image.naturalWidth);
    canvas.width = Math.round(image.naturalWidth * scale);
    canvas.height = Math.round(image.naturalHeight * scale);
    const view = now.view === null ? null : this.views?.views.find((each) => each.view === now.view);
    if (view?.attention) {
      drawAttention(canvas, image, view.attention, this.views.grid, this.views.box);
      return;
    }
    const own = evidence?.by.get(hit.image_id);
    if (!own || !words.length) {
      canvas.width = 0;
      return;
    }
    const maps = words.map((word, w) => {
      let most = 1e-9;
      for (const each of evidence.by.values()) for (const cell of each.cells) most = Math.max(most, cell[word]);
      return { values: own.cells.map((cell) => Math.max(0, cell[word]) / most), colour: COLOURS[w] };
    });
    drawEvidence(canvas, image, maps, evidence.grid, own.box);
  }
}
