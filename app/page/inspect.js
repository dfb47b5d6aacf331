/** Inspect: the selected image on the full page, with its words, its views, the lens and the insides of the method. */

import * as api from "./api.js";
import { el, toast } from "./dom.js";
import { COLOURS, attentionOf, drawAttention, drawEvidence, drawStrip, stretch } from "./evidence.js";
import { Explanation } from "./explanation.js";
import { clock } from "./grid.js";
import { describeArray, knobTitle } from "./inside.js";
import { methodOf } from "./main.js";
import { clipPlayer, legend } from "./panel.js";
import { curves, heatmap } from "./plots.js";
import { go, state } from "./state.js";
import { content } from "./uploads.js";

const TABS = { words: "Words", views: "Views", lens: "Lens", inside: "Inside" };
const BIG = 900; // pixels of the large canvas
const SMALL = 180;
const LENS_HITS = 12;
const ATTENTION = "#2a9d8f";

export class Inspect {
  /** @param {HTMLDialogElement} dialog @param {import("./main.js").Context} context */
  constructor(dialog, context) {
    this.dialog = dialog;
    this.context = context;
    this.strength = 1;
    this.outline = false;
    this.against = false;
    this.perView = false;
    /** @type {number[]} */
    this.weights = [];
    /** @type {string[]} */
    this.settings = [];
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      go({ inspect: "" });
    });
    dialog.addEventListener("close", () => state().inspect && go({ inspect: "" }));
  }

  /** @param {import("./state.js").State} now */
  async update(now) {
    if (!now.inspect || now.image === null) {
      if (this.dialog.open) this.dialog.close();
      this.key = "";
      return;
    }
    const method = now.by || methodOf(now);
    const key = JSON.stringify([now.image, method, now.q, now.like, now.upload, now.pack, now.collection]);
    if (key !== this.key) {
      this.key = key;
      this.settings = [];
      this.split = null;
      this.views = null;
      this.explanation = null;
      this.weights = Array(this.context.info.methods[method]?.views ?? 1).fill(1);
      this.#build(now, method);
      if (!this.dialog.open) this.dialog.showModal();
      await this.#load(now, method, key);
      return;
    }
    this.#draw();
  }

  async #load(now, method, key) {
    const ask = { ...now, more: [], less: [] };
    const words = now.q || now.like !== null || now.upload;
    const explained = words
      ? api.explainHits(ask, [now.image], method, { lane: "inspect", image: content(now.upload) })
      : Promise.resolve(null);
    try {
      const [views, answer] = await Promise.all([
        api.views(now, now.image, method, this.settings, "inspect views"),
        explained.catch(() => null),
        this.image.decode().catch(() => {}),
      ]);
      if (key !== this.key) return;
      const ratio = this.image.naturalWidth / (this.image.naturalHeight || 1);
      this.stage.style.cssText = `aspect-ratio:${ratio};width:min(100%, calc(${ratio} * var(--tall)))`;
      this.views = views;
      this.explanation = answer && new Explanation(answer);
      this.#draw();
    } catch (error) {
      this.side.replaceChildren(el("p.problem", {}, error.message));
    }
  }

  #build(now, method) {
    const { methods } = this.context.info;
    const hit = this.context.hit?.image_id === now.image ? this.context.hit : null;
    const caption = hit?.captions?.[0] ?? hit?.file.split("/").pop() ?? `image ${now.image}`;
    this.image = el("img", { alt: caption, src: api.imageUrl(now, now.image, true) });
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.stage = el("div.stage", {}, this.image, this.canvas);
    const clip = hit && hit.seconds !== null && hit.seconds !== undefined;
    this.strip = el("div.strip", { hidden: true, tabIndex: 0, role: "group", "aria-label": "Frames of the clip" });
    const choose = el(
      "select",
      { "aria-label": "Method", onchange: () => go({ by: choose.value, view: null }, { replace: true }) },
      ...Object.entries(methods).map(([key, about]) => el("option", { value: key }, about.title)),
    );
    choose.value = method;
    this.tabs = el(
      "div.tabs",
      { role: "tablist", onkeydown: (event) => this.#tabKey(event) },
      ...Object.entries(TABS).map(([tab, label]) =>
        el("button", { type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": "inspect-side", "data-tab": tab, onclick: () => go({ inspect: tab }, { replace: true }) }, label),
      ),
    );
    this.side = el("div.side", { id: "inspect-side", role: "tabpanel", tabIndex: 0 }, el("p.caption", {}, "Loading…"));
    this.dialog.replaceChildren(
      el(
        "header",
        {},
        el("h2", { id: "inspect-title" }, now.q ? `“${now.q}”` : caption),
        this.tabs,
        choose,
        el("button.quiet.round", { type: "button", "aria-label": "Close", onclick: () => go({ inspect: "" }) }, "×"),
      ),
      el(
        "div.body",
        {},
        el("div.left", {}, this.stage, clip ? this.#player(now, hit) : null, this.strip, this.#controls(), legend(), el("p.caption", {}, caption)),
        this.side,
      ),
    );
  }

  #player(now, hit) {
    const holder = el("div.clip", {}, el("button", { type: "button", onclick: () => holder.replaceChildren(clipPlayer(now, hit)) }, "▶ Play the clip"));
    return holder;
  }

  #controls() {
    const strength = el("input", {
      type: "range", min: "0", max: "2", step: "0.1", value: String(this.strength), "aria-label": "Strength",
      oninput: () => {
        this.strength = Number(strength.value);
        this.#drawStage(state());
      },
    });
    const box = (label, name) => {
      const input = el("input", {
        type: "checkbox",
        checked: this[name],
        onchange: () => {
          this[name] = input.checked;
          this.#drawStage(state());
        },
      });
      return el("label.switch", {}, input, label);
    };
    return el("div.controls", {}, el("label.switch", {}, "Strength", strength), box("Outline only", "outline"), box("Evidence against", "against"));
  }

  #tabKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const names = Object.keys(TABS);
    const next = names[(names.indexOf(state().inspect) + step + names.length) % names.length];
    go({ inspect: next }, { replace: true });
    this.tabs.querySelector(`[data-tab="${next}"]`)?.focus();
  }

  #draw() {
    if (!this.views) return;
    const now = state();
    const tab = now.inspect in TABS ? now.inspect : "words";
    for (const button of this.tabs.children) {
      button.setAttribute("aria-selected", String(button.dataset.tab === tab));
      button.tabIndex = button.dataset.tab === tab ? 0 : -1;
    }
    this.side.setAttribute("aria-labelledby", `tab-${tab}`);
    const focused = this.side.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    const kept = this.side.dataset.tab === tab ? this.side.scrollTop : 0;
    this.side.dataset.tab = tab;
    const draw = { words: this.#drawWords, views: this.#drawViews, lens: this.#drawLens, inside: this.#drawInside }[tab];
    this.side.replaceChildren(...draw.call(this, now));
    this.side.scrollTop = kept;
    if (focused) this.side.querySelector(`[data-key="${focused}"]`)?.focus({ preventScroll: true });
    this.#drawStage(now);
  }

  #shownWords(now) {
    return this.explanation ? this.explanation.shown(now.words, now.image) : [];
  }

  /** The large image: a view's map on the tab Views, else the evidence of words. */
  #drawStage(now) {
    const { image, canvas, views, explanation } = this;
    if (!image.naturalWidth || !views) return;
    const scale = Math.min(BIG / image.naturalWidth, 4);
    canvas.width = Math.round(image.naturalWidth * scale);
    canvas.height = Math.round(image.naturalHeight * scale);
    const options = { strength: this.strength, outline: this.outline };
    const view = now.inspect === "views" ? (now.view ?? views.winner ?? 0) : null;
    const maps = view === null ? this.#wordMaps(now) : this.#viewMaps(view);
    if (views.sheet) {
      canvas.width = 0;
      this.#drawFrames(view === null || this.perView ? maps : [{ values: stretch(attentionOf(views, view) ?? [0]), colour: ATTENTION }]);
      return;
    }
    if (view !== null && !this.perView) {
      const attention = attentionOf(views, view);
      if (attention) drawAttention(canvas, image, attention, views.grid, views.box, { ...options, strength: 0.45 * this.strength });
      else canvas.width = 0;
      return;
    }
    if (!explanation || !maps.length) {
      canvas.width = 0;
      return;
    }
    const against = this.against && view === null ? this.#against(now) : null;
    drawEvidence(canvas, image, maps, explanation.grid, explanation.by.get(now.image).box, {
      strength: this.outline ? 0 : this.strength,
      outline: true,
      against,
    });
  }

  #wordMaps(now) {
    const words = this.#shownWords(now);
    return words.length ? this.explanation.maps(now.image, words) : [];
  }

  /** Evidence of all words in one view. */
  #viewMaps(view) {
    const cells = this.split?.[view]?.cells;
    if (!cells) return [];
    const sums = cells.map((cell) => Math.max(0, cell.reduce((total, value) => total + value, 0)));
    const most = Math.max(...sums, 1e-9);
    return [{ values: sums.map((value) => value / most), colour: COLOURS[0] }];
  }

  #against(now) {
    const words = this.#shownWords(now);
    const { cells } = this.explanation.by.get(now.image);
    return cells.map((cell) => Math.max(0, ...words.map((word) => -cell[word] / this.explanation.most[word])));
  }

  /** A clip's frames with a bar each, in order of time. */
  #drawFrames(maps) {
    const now = state();
    const { frames } = this.views;
    const seconds = this.explanation?.by.get(now.image)?.seconds ?? [];
    this.strip.hidden = false;
    this.strip.replaceChildren(
      ...frames.map((id, i) => {
        const bars = maps.map(({ values, colour }) => {
          const bar = el("i");
          bar.style.cssText = `background:${colour};height:${Math.max(2, Math.round(48 * Math.max(0, values[i] ?? 0)))}px`;
          return bar;
        });
        return el(
          "figure",
          {},
          el("img", { src: api.imageUrl(now, id), alt: `Frame ${i + 1}`, loading: "lazy" }),
          el("span.bars", {}, ...bars),
          el("figcaption", {}, seconds[i] === undefined ? String(i + 1) : `${seconds[i].toFixed(1)} s`),
        );
      }),
    );
  }

  #drawWords(now) {
    const { explanation } = this;
    if (!explanation) return [el("p.caption", {}, "Ask with words or an image to see what matched.")];
    const own = explanation.by.get(now.image);
    const sums = explanation.contributions(now.image);
    const chosen = this.#shownWords(now);
    const most = Math.max(...sums.map(Math.abs), 1e-9);
    const rows = explanation.words.map((word, index) => {
      const place = chosen.indexOf(index);
      const bar = el("i");
      bar.style.width = `${Math.round((100 * Math.abs(sums[index])) / most)}%`;
      bar.style.background = sums[index] < 0 ? "#7c3aed" : place >= 0 ? COLOURS[place] : "var(--quiet)";
      const next = place >= 0 ? chosen.filter((other) => other !== index) : [...chosen, index].slice(-4);
      return el(
        "button.word",
        { type: "button", "data-key": `word ${index}`, "aria-pressed": String(place >= 0), onclick: () => go({ words: next }, { replace: true }) },
        el("b", {}, `${explanation.negative[index] ? "− " : ""}${word}`),
        el("span.meter", {}, bar),
        el("span.number", {}, sums[index].toFixed(3)),
      );
    });
    const rest = own.score - sums.reduce((total, value) => total + value, 0);
    const most4 = chosen.map((word) => `"${explanation.words[word]}" contributes ${sums[word].toFixed(2)} of ${own.score.toFixed(2)}`);
    return [
      el("h3", {}, "What each word adds to the score"),
      ...rows,
      Math.abs(rest) > 0.0005 ? el("p.caption", {}, `${rest.toFixed(3)} belongs to no word or place.`) : null,
      el("p", {}, most4.join("; ")),
      el("p.caption", {}, "Choose up to four words. Evidence against a word is hatched in violet where you switch it on."),
      this.#timeline(now),
    ].filter(Boolean);
  }

  /** How a clip's frames match over time. */
  #timeline(now) {
    if (!this.context.hit || this.context.hit.seconds === null || this.context.hit.seconds === undefined) return null;
    const holder = el("div", {});
    const own = this.explanation.by.get(now.image);
    const show = (values, seconds) =>
      holder.replaceChildren(
        el("h3", {}, "Over time"),
        curves({ title: "Match over time", values: [values], rows: ["match"], columns: seconds.map(clockTenths) }),
      );
    if (this.views.sheet) {
      const words = this.#shownWords(now);
      show(own.cells.map((cell) => words.reduce((total, word) => total + cell[word], 0)), own.seconds);
      return holder;
    }
    api
      .timeline(now, now.image, now.by || methodOf(now))
      .then(({ hits }) => hits.length > 1 && show(hits.map(({ score }) => score), hits.map(({ seconds }) => seconds)))
      .catch(() => {});
    return holder;
  }

  #drawViews(now) {
    const { views } = this;
    const shown = now.view ?? views.winner ?? 0;
    if (this.perView && !this.split) this.#loadSplit(now);
    const kind = (label, perView) =>
      el("button.chip", {
        type: "button", "data-key": label, "aria-pressed": String(this.perView === perView),
        onclick: () => {
          this.perView = perView;
          this.#draw();
        },
      }, label);
    const figures = views.views.map(({ view, score }) => {
      const canvas = el("canvas", { "aria-hidden": "true" });
      this.#drawSmall(canvas, view);
      return el(
        "button.view",
        {
          type: "button", "data-key": `view ${view}`, "aria-label": `View ${view + 1}`, "aria-pressed": String(view === shown),
          onclick: () => go({ view }, { replace: true }),
        },
        canvas,
        el("span", {}, `${view + 1}${view === views.winner && views.views.length > 1 ? " ★" : ""}`, score === null || score === undefined ? "" : el("small", {}, ` ${score.toFixed(3)}`)),
      );
    });
    return [
      el("div.chips", {}, kind("Where the view looks", false), now.q ? kind("What it matched", true) : null),
      el("div.thumbs", {}, ...figures),
      views.collapsed ? el("p", {}, "These views are nearly the same. The maps show their difference from the mean view.") : null,
      el("p.caption", {}, `Attention: ${views.attention_is}.${views.view_scores_are ? ` Numbers: ${views.view_scores_are}.` : ""}${views.winner === null || views.winner === undefined ? "" : " ★ is the view that matched best."}`),
    ].filter(Boolean);
  }

  #drawSmall(canvas, view) {
    const { image, views } = this;
    canvas.width = SMALL;
    canvas.height = Math.max(40, Math.round((SMALL * image.naturalHeight) / (image.naturalWidth || 1)));
    const maps = this.perView ? this.#viewMaps(view) : [];
    const attention = attentionOf(views, view);
    if (views.sheet) {
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      const layer = document.createElement("canvas");
      [layer.width, layer.height] = [canvas.width, canvas.height];
      drawStrip(layer, maps.length ? maps : [{ values: stretch(attention ?? [0]), colour: ATTENTION }]);
      canvas.getContext("2d").drawImage(layer, 0, 0);
    } else if (maps.length) drawEvidence(canvas, image, maps, this.explanation.grid, views.box);
    else if (attention) drawAttention(canvas, image, attention, views.grid, views.box);
    else canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  }

  async #loadSplit(now) {
    const { key } = this;
    try {
      const answer = await api.explain(now, now.image, now.by || methodOf(now));
      if (key !== this.key) return;
      this.split = answer.per_view;
      this.#draw();
    } catch (error) {
      this.perView = false;
      toast(error.message);
    }
  }

  #drawLens(now) {
    const { methods } = this.context.info;
    if (this.weights.length < 2) {
      const several = Object.entries(methods).filter(([, about]) => about.views > 1);
      return [
        el("p", {}, "This method has one view. The lens mutes views of a method that has several:"),
        el("div.chips", {}, ...several.map(([key, about]) => el("button.chip", { type: "button", onclick: () => go({ by: key, view: null }, { replace: true }) }, `${about.title} ${about.views}`))),
      ];
    }
    if (!now.q) return [el("p.caption", {}, "Ask with words to search through some of the views only.")];
    this.lensHits ??= el("div.lens");
    const set = (weights) => {
      this.weights = weights;
      this.#draw();
    };
    const sliders = this.weights.map((weight, view) => {
      const input = el("input", {
        type: "range", min: "0", max: "1", step: "0.25", value: String(weight), "data-key": `lens ${view}`, "aria-label": `Weight of view ${view + 1}`,
        onchange: () => set(this.weights.map((other, place) => (place === view ? Number(input.value) : other))),
      });
      return el("label", {}, el("span", {}, String(view + 1)), input);
    });
    const preset = (label, weights) => el("button", { type: "button", "data-key": label, onclick: () => set(weights) }, label);
    const best = now.view ?? this.views.winner ?? 0;
    this.#askLens(now);
    return [
      el("p.caption", {}, "Search through some of the views: 0 mutes a view."),
      el("div.chips", {}, preset("All views", this.weights.map(() => 1)), preset(`Only view ${best + 1}`, this.weights.map((_, view) => Number(view === best))), preset(`Without view ${best + 1}`, this.weights.map((_, view) => Number(view !== best)))),
      el("div.sliders", {}, ...sliders),
      this.lensHits,
    ];
  }

  async #askLens(now) {
    const method = now.by || methodOf(now);
    const key = `${this.key} ${this.weights}`;
    if (key === this.lensKey) return;
    this.lensKey = key;
    if (!this.weights.some(Boolean)) {
      this.lensHits.replaceChildren(el("p", {}, "All views are muted. Raise at least one."));
      return;
    }
    try {
      const answer = await api.lens(now, method, this.weights, LENS_HITS);
      if (key !== this.lensKey) return;
      const moved = ({ rank, before }) => (before === rank ? "same" : before > rank ? `▲ from ${before}` : `▼ from ${before}`);
      this.lensHits.replaceChildren(
        el("h3", {}, `${answer.stayed} of the first ${LENS_HITS} stay`),
        el(
          "div.thumbs",
          {},
          ...answer.hits.map((hit) =>
            el(
              "button.view",
              { type: "button", onclick: () => go({ image: hit.image_id }) },
              el("img", { src: api.imageUrl(now, hit.image_id), alt: hit.captions?.[0] ?? hit.file }),
              el("span", {}, `${hit.rank} `, el("small", {}, moved(hit))),
            ),
          ),
        ),
      );
    } catch (error) {
      this.lensHits.replaceChildren(el("p.problem", {}, error.message));
    }
  }

  #drawInside(now) {
    const { views } = this;
    const names = views.views.map(({ view }) => `view ${view + 1}`);
    const sections = views.inside.map((item) => this.#insideSection(item));
    if (names.length > 1) {
      sections.push(section("Similarity of the image's views", "Cosine of every two views; near 1 means that they say the same.", heatmap({ title: "Similarity of views", values: views.similarity, rows: names, columns: names, limits: [-1, 1] })));
    }
    if (views.word_attention && names.length >= 1 && views.words?.length) {
      const rows = views.word_attention.map((_, view) => `view ${view + 1}`);
      sections.push(section("Which words each view of the text reads", "", heatmap({ title: "Attention over words", values: views.word_attention, rows, columns: views.words })));
    }
    if (this.explanation) {
      const own = this.explanation.by.get(now.image);
      const [, columns] = this.explanation.grid;
      const rows = own.cells.map((_, cell) => (own.seconds.length ? `${own.seconds[cell]} s` : `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`));
      const transposed = this.explanation.words.map((_, word) => own.cells.map((cell) => cell[word]));
      sections.push(section("Cells and words", "What each place of the image and each word together add to the score.", heatmap({ title: "Cells and words", values: transposed, rows: this.explanation.words, columns: rows })));
    }
    return [this.#knobs(), ...sections, this.#collapse(now)].filter(Boolean);
  }

  #insideSection(array) {
    const item = describeArray(array, this.views.views.length);
    if (item.kind === "matrix") return section(item.title, item.meaning, heatmap(item));
    if (item.kind === "curve") return section(item.title, item.meaning, curves(item));
    return section(item.title, item.meaning, el("p.figure", {}, Number(item.values).toFixed(4)));
  }

  /** Settings of the method, such as how AVSE matches its blocks. */
  #knobs() {
    if (!this.views.knobs.length) return null;
    const change = async (name, value) => {
      this.settings = [...this.settings.filter((each) => !each.startsWith(`${name}:`)), `${name}:${value}`];
      const now = state();
      await this.#load(now, now.by || methodOf(now), this.key);
    };
    return el(
      "div.controls",
      {},
      ...this.views.knobs.map(({ name, value, options, low, high }) => {
        const input = options.length
          ? el("select", { "data-key": name, onchange: () => change(name, input.value) }, ...options.map((option) => el("option", { value: option }, option)))
          : el("input", { type: "number", min: String(low), max: String(high), "data-key": name, onchange: () => change(name, input.value) });
        input.value = String(value);
        return el("label.switch", {}, knobTitle(name), input);
      }),
    );
  }

  /** How much the views of a method differ over many images; measured by the server on demand. */
  #collapse(now) {
    const method = now.by || methodOf(now);
    const holder = el("div", {});
    const { key } = this;
    const ask = async () => {
      const answer = await api.collapse(now, method).catch((error) => ({ state: "failed", progress: error.message }));
      if (key !== this.key || !holder.isConnected) return;
      if (answer.state === "ready") {
        holder.replaceChildren(
          el("p.figure", {}, `${answer.in_use.toFixed(1)} of ${answer.views} views in use`),
          el("p", {}, answer.collapsed ? "The views have collapsed: they say nearly the same." : "The views differ."),
          el("p.caption", {}, `Mean cosine of two views ${answer.similarity.toFixed(2)}, overlap of their maps ${answer.overlap === null ? "not known" : answer.overlap.toFixed(2)}; over ${answer.images} images and ${answer.captions} captions.`),
          heatmap({ title: "Share of captions that each view wins", values: [answer.wins], rows: ["wins"], columns: answer.wins.map((_, view) => `view ${view + 1}`) }),
        );
        return;
      }
      holder.replaceChildren(el("p.caption", {}, answer.progress || "measuring"));
      if (answer.state !== "failed") setTimeout(ask, 700);
    };
    if (this.weights.length < 2) return null;
    setTimeout(ask, 0);
    return section("Collapse", "How many of the views are used, over the whole collection.", holder);
  }
}

const clockTenths = (seconds) => (seconds < 60 ? `${seconds.toFixed(1)} s` : clock(seconds));

const section = (heading, meaning, figure) =>
  el("section", {}, el("h3", {}, heading), meaning ? el("p.caption", {}, meaning) : null, el("div.scroll", { tabIndex: 0, role: "group", "aria-label": heading }, figure));
