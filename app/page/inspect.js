/** Inspect: the selected image on the full page, with words, views, lens and the intermediate arrays of the method. */

import * as api from "./api.js";
import { button, el, icon, redraw, select, toast, toggle } from "./dom.js";
import { AGAINST, ATTENTION_COLOUR, COLOURS, MAX_VIEWS, attentionOf } from "./evidence.js";
import { drawAttention, drawEvidence, drawStrip, stretch } from "./evidence.js";
import { Explanation, decimal, toggled } from "./explanation.js";
import { captionOf, clock } from "./grid.js";
import { describeArray, knobTitle } from "./inside.js";
import { methodOf } from "./main.js";
import { CELLS, clipPlayer, legend } from "./panel.js";
import { curves, heatmap } from "./plots.js";
import { go, state, storedImage } from "./state.js";

const TABS = { words: "Words", views: "Views", lens: "Lens", inside: "Inside" };
const BIG = 900; // pixels of the large canvas
const SMALL = 180;
const LENS_HITS = 12;
const ASK_AGAIN = 700; // milliseconds between requests for the collapse meter

export class Inspect {
  /** @param {HTMLDialogElement} dialog @param {import("./main.js").Context} context */
  constructor(dialog, context) {
    Object.assign(this, { dialog, context, strength: 1, outline: false, against: false, perView: false });
    /** The weights of the lens, one for each view. @type {number[]} */
    this.weights = [];
    /** "name:value" of the method's knobs. @type {string[]} */
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
      Object.assign(this, { key, method, settings: [], split: null, views: null, explanation: null });
      this.weights = Array(this.context.info.methods[method]?.views ?? 1).fill(1);
      this.#build(now);
      if (!this.dialog.open) this.dialog.showModal();
      this.dialog.toggleAttribute("data-loading", !this.#hit || this.#isClip); // the layout is not yet known
      await this.#load(now);
      return;
    }
    this.#draw();
  }

  async #load(now) {
    const { key, method } = this;
    const ask = { ...now, more: [], less: [] };
    const words = now.q || now.like !== null || now.upload;
    const explained = words
      ? api.explainHits(ask, [now.image], method, { lane: "inspect", image: storedImage(now.upload) })
      : Promise.resolve(null);
    try {
      const [views, answer] = await Promise.all([
        api.views(now, now.image, method, this.settings, "inspect views"),
        explained.catch(() => null),
        this.image.decode().catch(() => {}),
      ]);
      if (key !== this.key) return;
      this.#shape(this.image.naturalWidth, this.image.naturalHeight);
      this.views = views;
      this.explanation = answer && new Explanation(answer);
      this.#draw();
    } catch (error) {
      this.dialog.removeAttribute("data-loading");
      this.side.replaceChildren(el("p.problem", {}, error.message));
    }
  }

  #build(now) {
    this.image = el("img", { alt: "The selected image", src: api.imageUrl(now, now.image, true) });
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.stage = el("div.stage", {}, this.image, this.canvas);
    this.#shape(this.#hit?.width, this.#hit?.height);
    this.caption = el("p.caption");
    this.clip = el("div.clip");
    this.strip = el("div.strip", { hidden: true, tabIndex: 0, role: "group", "aria-label": "Frames of the clip" });
    const options = Object.entries(this.context.info.methods).map(([value, { title }]) => el("option", { value }, title));
    const choose = select("Method", options, this.method, (by) => go({ by, view: null }, { replace: true }));
    const tab = ([name, label]) =>
      button(label, () => go({ inspect: name }, { replace: true }), "button.quiet", {
        role: "tab",
        id: `tab-${name}`,
        "aria-controls": "inspect-side",
        "data-tab": name,
        autofocus: name === now.inspect,
      });
    const tabs = Object.entries(TABS).map(tab);
    this.tabs = el("div.tabs", { role: "tablist", onkeydown: (event) => this.#tabKey(event) }, ...tabs);
    const side = { id: "inspect-side", role: "tabpanel", tabIndex: 0 };
    this.side = el("div.side", side, el("p.caption", {}, "Loading…"));
    const title = el("h2", { id: "inspect-title" }, now.q ? `“${now.q}”` : "Image");
    const close = icon("Close", "×", () => go({ inspect: "" }));
    const left = el("div.left", {}, this.stage, this.clip, this.strip, this.#controls(), legend(), this.caption);
    this.dialog.replaceChildren(
      el("header", {}, title, this.tabs, choose, close),
      el("div.body", {}, left, this.side),
    );
    this.#draw();
  }

  #shape(width, height) {
    this.stage.style.setProperty("--ratio", String((width || 1) / (height || 1)));
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
      const change = (event) => {
        this[name] = event.target.checked;
        this.#drawStage(state());
      };
      return el("label.switch", {}, el("input", { type: "checkbox", checked: this[name], onchange: change }), label);
    };
    const slider = el("label.switch", {}, "Strength", strength);
    return el("div.controls", {}, slider, box("Outline only", "outline"), box("Evidence against", "against"));
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
    const now = state();
    const tab = now.inspect in TABS ? now.inspect : "words";
    for (const each of this.tabs.children) {
      each.setAttribute("aria-selected", String(each.dataset.tab === tab));
      each.tabIndex = each.dataset.tab === tab ? 0 : -1;
    }
    this.side.setAttribute("aria-labelledby", `tab-${tab}`);
    const about = this.#hit ?? this.views;
    if (about) this.caption.textContent = this.image.alt = captionOf(about, now.q);
    if (!this.views) return; // not loaded yet
    this.dialog.removeAttribute("data-loading");
    const play = () => this.clip.replaceChildren(clipPlayer(now, { ...this.views, ...this.#hit }));
    if (this.#isClip && !this.clip.firstChild) this.clip.append(button("▶ Play the clip", play));
    const scrolled = this.side.dataset.tab === tab ? this.side.scrollTop : 0;
    this.side.dataset.tab = tab;
    const draw = { words: this.#drawWords, views: this.#drawViews, lens: this.#drawLens, inside: this.#drawInside };
    redraw(this.side, ...draw[tab].call(this, now));
    this.side.scrollTop = scrolled;
    this.#drawStage(now);
  }

  /** The hit of the image on the screen behind the dialog, if there is one. */
  get #hit() {
    return this.context.hit?.image_id === state().image ? this.context.hit : null;
  }

  get #isClip() {
    return Boolean(this.views?.sheet) || (this.#hit?.seconds ?? null) !== null;
  }

  #shownWords(now) {
    return this.explanation ? this.explanation.shown(now.words) : [];
  }

  /** Draws the large image: a view's map on the tab Views, otherwise the evidence of words. */
  #drawStage(now) {
    const { image, canvas, views, explanation, strength, outline } = this;
    if (!image.naturalWidth || !views) return;
    const scale = Math.min(BIG / image.naturalWidth, 4);
    canvas.width = Math.round(image.naturalWidth * scale);
    canvas.height = Math.round(image.naturalHeight * scale);
    const view = now.inspect === "views" && views.views.length <= MAX_VIEWS ? shownView(views, now) : null;
    const attention = view === null || this.perView ? null : attentionOf(views, view);
    const words = this.#shownWords(now);
    const maps = view === null ? (explanation?.maps(now.image, words) ?? []) : this.#viewMaps(view);
    if (views.sheet) {
      canvas.width = 0;
      this.#drawFrames(now, attention ? [{ values: stretch(attention), colour: ATTENTION_COLOUR }] : maps);
    } else if (attention) {
      drawAttention(canvas, image, attention, views.grid, views.box, { strength: 0.45 * strength, outline });
    } else if (maps.length) {
      const { cells, box } = explanation.by.get(now.image);
      const negative = (cell) => Math.max(0, ...words.map((word) => -cell[word] / explanation.most[word]));
      const against = this.against && view === null ? cells.map(negative) : null;
      drawEvidence(canvas, image, maps, explanation.grid, box, { strength: outline ? 0 : strength, against });
    } else canvas.width = 0;
  }

  /** The evidence of all words in one view. */
  #viewMaps(view) {
    const cells = this.split?.[view]?.cells;
    if (!cells) return [];
    const sums = cells.map((cell) => Math.max(0, cell.reduce((total, value) => total + value, 0)));
    const most = Math.max(...sums, 1e-9);
    return [{ values: sums.map((value) => value / most), colour: COLOURS[0] }];
  }

  /** Draws a clip's frames in time order, each with a bar. */
  #drawFrames(now, maps) {
    const seconds = this.explanation?.by.get(now.image)?.seconds ?? [];
    const frame = (id, i) => {
      const bars = maps.map(({ values, colour }) => {
        const bar = el("i");
        const tall = Math.max(2, Math.round(48 * Math.max(0, values[i] ?? 0)));
        bar.style.cssText = `background:${colour};height:${tall}px`;
        return bar;
      });
      return el("figure", {},
        el("img", { src: api.imageUrl(now, id), alt: `Frame ${i + 1}`, loading: "lazy" }),
        el("span.bars", {}, ...bars),
        el("figcaption", {}, seconds[i] === undefined ? String(i + 1) : `${seconds[i].toFixed(1)} s`),
      );
    };
    this.strip.hidden = false;
    this.strip.replaceChildren(...this.views.frames.map(frame));
  }

  #drawWords(now) {
    const { explanation } = this;
    if (!explanation) return [el("p.caption", {}, "Search with words or an image to see what matched.")];
    if (explanation.remark) return [el("p.caption", {}, explanation.remark)];
    const own = explanation.by.get(now.image);
    const sums = explanation.contributions(now.image);
    const chosen = this.#shownWords(now);
    const most = Math.max(...sums.map(Math.abs), 1e-9);
    const rows = explanation.words.map((word, index) => {
      const place = chosen.indexOf(index);
      const bar = el("i");
      bar.style.width = `${Math.round((100 * Math.abs(sums[index])) / most)}%`;
      bar.style.background = sums[index] < 0 ? AGAINST : place >= 0 ? COLOURS[place] : "var(--quiet)";
      const choose = () => go({ words: toggled(chosen, index) }, { replace: true });
      const label = el("b", {}, `${explanation.negative[index] ? "− " : ""}${word}`);
      const sum = el("span.number", {}, decimal(sums[index], 3));
      return toggle("button.word", `word ${index}`, place >= 0, choose, label, el("span.meter", {}, bar), sum);
    });
    const rest = own.score - sums.reduce((total, value) => total + value, 0);
    return [
      el("h3", {}, "What each word adds to the score"),
      ...rows,
      Math.abs(rest) > 0.0005 && el("p.caption", {}, `${decimal(rest, 3)} belongs to no word or cell.`),
      el("p", {}, explanation.sentence(now.image, chosen)),
      el("p.caption", {}, "Choose up to four words. “Evidence against” hatches cells that lower the score."),
      this.#isClip && this.#timeline(now, own, chosen),
    ];
  }

  /** A chart of how a clip's frames match over time. */
  #timeline(now, own, words) {
    const holder = el("div");
    const show = (values, seconds) => {
      const moments = seconds.map((second) => (second < 60 ? `${second.toFixed(1)} s` : clock(second)));
      const chart = { title: "Match over time", values: [values], rows: ["match"], columns: moments };
      holder.replaceChildren(el("h3", {}, "Over time"), curves(chart));
    };
    if (this.views.sheet) {
      show(own.cells.map((cell) => words.reduce((total, word) => total + cell[word], 0)), own.seconds);
    } else if (now.q) {
      api
        .timeline(now, now.image, this.method)
        .then(({ hits }) => hits.length > 1 && show(hits.map(({ score }) => score), hits.map(({ seconds }) => seconds)))
        .catch(() => {}); // the words are still shown
    }
    return holder;
  }

  #drawViews(now) {
    const { views } = this;
    if (views.views.length > MAX_VIEWS) return [el("p", {}, CELLS)];
    const current = shownView(views, now);
    if (this.perView && !this.split) this.#loadSplit(now);
    const kind = (label, perView) => {
      const change = () => {
        this.perView = perView;
        this.#draw();
      };
      return toggle("button.chip", label, this.perView === perView, change, label);
    };
    const figure = ({ view, score }) => {
      const canvas = el("canvas", { "aria-hidden": "true" });
      this.#drawSmall(canvas, view);
      const best = view === views.winner && views.similarity.length > 1 ? " ★" : "";
      const number = (score ?? null) !== null && el("small", {}, ` ${decimal(score, 3)}`);
      const choose = () => go({ view }, { replace: true });
      const label = el("span", {}, `${view + 1}${best}`, number);
      return toggle("button.view", `view ${view}`, view === current, choose, canvas, label);
    };
    const about = [`Attention: ${views.attention_is}.`];
    if (views.view_scores_are) about.push(`Numbers: ${views.view_scores_are}.`);
    if ((views.winner ?? null) !== null && views.similarity.length > 1) about.push("★ is the view that matched best.");
    return [
      el("div.chips", {}, kind("Where the view looks", false), now.q ? kind("What it matched", true) : null),
      el("div.thumbs", { role: "group", "aria-label": "Views" }, ...views.views.map(figure)),
      views.collapsed &&
        el("p", {}, "These views are nearly the same. The maps show their difference from the mean view."),
      el("p.caption", {}, about.join(" ")),
    ];
  }

  #drawSmall(canvas, view) {
    const { image, views } = this;
    if (!image.naturalWidth) return; // the image could not be loaded
    canvas.width = SMALL;
    canvas.height = Math.max(40, Math.round((SMALL * image.naturalHeight) / image.naturalWidth));
    const maps = this.perView ? this.#viewMaps(view) : [];
    const attention = attentionOf(views, view);
    if (views.sheet) {
      const layer = el("canvas", { width: canvas.width, height: canvas.height });
      drawStrip(layer, maps.length ? maps : [{ values: stretch(attention ?? [0]), colour: ATTENTION_COLOUR }]);
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.getContext("2d").drawImage(layer, 0, 0);
    } else if (maps.length) drawEvidence(canvas, image, maps, this.explanation.grid, views.box);
    else if (attention) drawAttention(canvas, image, attention, views.grid, views.box);
    else canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  }

  async #loadSplit(now) {
    const { key } = this;
    try {
      const answer = await api.explain(now, now.image, this.method);
      if (key !== this.key) return;
      this.split = answer.per_view;
      this.#draw();
    } catch (error) {
      this.perView = false;
      toast(error.message);
    }
  }

  #drawLens(now) {
    if (this.weights.length < 2) {
      const several = Object.entries(this.context.info.methods).filter(([, about]) => about.views > 1);
      const choose = ([by, { title, views }]) =>
        button(`${title} ${views}`, () => go({ by, view: null }, { replace: true }), "button.chip");
      return [
        el("p", {}, "This method has one view. The lens mutes views of a method that has several:"),
        el("div.chips", {}, ...several.map(choose)),
      ];
    }
    if (!now.q) return [el("p.caption", {}, "Search with words to use only some of the views.")];
    this.lensHits ??= el("div.lens");
    const set = (weights) => {
      this.weights = weights;
      this.#draw();
    };
    const slider = (view) => {
      const input = el("input", {
        type: "range", min: "0", max: "1", step: "0.25", value: String(this.weights[view]),
        "data-key": `lens ${view}`, "aria-label": `Weight of view ${view + 1}`,
        onchange: () => set(this.weights.with(view, Number(input.value))),
      });
      return el("label", {}, el("span", {}, String(view + 1)), input);
    };
    const best = shownView(this.views, now);
    const preset = (label, weight) =>
      button(label, () => set(this.weights.map((_, view) => Number(weight(view)))), "button", { "data-key": label });
    this.#askLens(now);
    const few = this.weights.length <= MAX_VIEWS;
    const listed = few ? [...this.weights.keys()] : this.views.views.map(({ view }) => view);
    const about = few ? "" : " Only views that add to the score of this image are listed.";
    return [
      el("p.caption", {}, `Search with only some of the views: a weight of 0 mutes a view.${about}`),
      el("div.chips", {}, preset("All views", () => 1), preset(`Only view ${best + 1}`, (view) => view === best),
        preset(`Without view ${best + 1}`, (view) => view !== best)),
      el("div.sliders", {}, ...listed.map(slider)),
      this.lensHits,
    ];
  }

  async #askLens(now) {
    const key = `${this.key} ${this.weights}`;
    if (key === this.lensKey) return;
    this.lensKey = key;
    if (!this.weights.some(Boolean)) {
      this.lensHits.replaceChildren(el("p", {}, "All views are muted. Raise the weight of at least one view."));
      return;
    }
    const moved = ({ rank, before }) => (before === rank ? "same" : `${before > rank ? "▲" : "▼"} from ${before}`);
    const tile = (hit) =>
      el("button.view", { type: "button", onclick: () => go({ image: hit.image_id }) },
        el("img", { src: api.imageUrl(now, hit.image_id), alt: captionOf(hit, now.q) }),
        el("span", {}, `${hit.rank} `, el("small", {}, moved(hit))),
      );
    try {
      const answer = await api.lens(now, this.method, this.weights, LENS_HITS);
      if (key !== this.lensKey) return;
      const title = el("h3", {}, `${answer.stayed} of the first ${LENS_HITS} stay`);
      this.lensHits.replaceChildren(title, el("div.thumbs", {}, ...answer.hits.map(tile)));
    } catch (error) {
      this.lensHits.replaceChildren(el("p.problem", {}, error.message));
    }
  }

  #drawInside(now) {
    const { views, explanation } = this;
    const { similarity, word_attention: reading, words } = views;
    const names = (rows) => rows.map((_, view) => `view ${view + 1}`);
    const figures = views.inside.map((array) => {
      const item = describeArray(array, similarity.length);
      if (item.kind === "matrix") return section(item.title, item.meaning, heatmap(item));
      if (item.kind === "curve") return section(item.title, item.meaning, curves(item));
      return section(item.title, item.meaning, el("p.figure", {}, decimal(Number(item.values), 4)));
    });
    const matrix = (title, meaning, values, rows, columns, limits = null) =>
      figures.push(section(title, meaning, heatmap({ title, values, rows, columns, limits })));
    if (similarity.length > 1) {
      const meaning = "Cosine of each pair of views; near 1 means that they are nearly the same.";
      matrix("Similarity of the image's views", meaning, similarity, names(similarity), names(similarity), [-1, 1]);
    }
    if (reading && words?.length) matrix("Words that each view of the text attends to", "", reading, names(reading), words);
    if (explanation) {
      const { cells, seconds } = explanation.by.get(now.image);
      const across = explanation.grid[1];
      const place = (cell) => `row ${Math.floor(cell / across) + 1}, column ${(cell % across) + 1}`;
      const columns = cells.map((_, cell) => (seconds.length ? `${seconds[cell]} s` : place(cell)));
      const values = explanation.words.map((_, word) => cells.map((cell) => cell[word]));
      const meaning = "What each pair of a cell and a word adds to the score.";
      matrix("Cells and words", meaning, values, explanation.words, columns);
    }
    return [this.#knobs(), ...figures, this.weights.length > 1 && this.#collapse(now)];
  }

  /** Settings of the method, such as how AVSE matches its blocks. */
  #knobs() {
    if (!this.views.knobs.length) return null;
    const knob = ({ name, value, options, low, high }) => {
      const change = (event) => {
        const rest = this.settings.filter((each) => !each.startsWith(`${name}:`));
        this.settings = [...rest, `${name}:${event.target.value}`];
        this.#load(state());
      };
      const shared = { "data-key": name, onchange: change };
      const input = options.length
        ? el("select", shared, ...options.map((option) => el("option", { value: option }, knobTitle(option))))
        : el("input", { ...shared, type: "number", min: String(low), max: String(high) });
      input.value = String(value);
      return el("label.switch", {}, knobTitle(name), input);
    };
    return el("div.controls", {}, ...this.views.knobs.map(knob));
  }

  /** Requests the collapse meter, and shows how much the views of a method differ. */
  #collapse(now) {
    const holder = el("div");
    const { key, method } = this;
    const ask = async () => {
      const answer = await api.collapse(now, method).catch((error) => ({ state: "failed", progress: error.message }));
      if (key !== this.key || !holder.isConnected) return;
      if (answer.state !== "ready") {
        holder.replaceChildren(el("p.caption", {}, answer.progress || "measuring"));
        if (answer.state !== "failed") setTimeout(ask, ASK_AGAIN);
        return;
      }
      const { in_use: used, views, similarity, wins, images, captions } = answer;
      const cosine = (similarity ?? null) === null ? "unknown" : decimal(similarity);
      const title = "Share of captions that each view wins";
      const columns = wins?.map((_, view) => `view ${view + 1}`);
      holder.replaceChildren(
        (used ?? null) === null ? "" : el("p.figure", {}, `${used.toFixed(1)} of ${views} views in use`),
        el("p", {}, answer.collapsed ? "The views have collapsed: they are nearly the same." : "The views differ."),
        el("p.caption", {}, `Mean cosine of two views: ${cosine}. Measured over ${images} images and ${captions} captions.`),
        wins ? heatmap({ title, values: [wins], rows: ["wins"], columns }) : "",
      );
    };
    setTimeout(ask, 0); // once the section is on the page
    return section("Collapse", "How many of the views are used, measured over the whole collection.", holder);
  }
}

function section(heading, meaning, figure) {
  const box = el("div.scroll", { tabIndex: 0, role: "group", "aria-label": heading }, figure);
  return el("section", {}, el("h3", {}, heading), meaning ? el("p.caption", {}, meaning) : null, box);
}

/** The selected view if it is listed, otherwise the best one. */
function shownView(views, now) {
  return views.views.some(({ view }) => view === now.view) ? now.view : (views.winner ?? 0);
}
