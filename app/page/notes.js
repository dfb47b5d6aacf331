/** The line between the query and the results: words, example images, hints, suggestions. */

import * as api from "./api.js";
import { button, el, icon, redraw, select, toggle } from "./dom.js";
import { COLOURS } from "./evidence.js";
import { decimal, isFunctionWord, toggled } from "./explanation.js";
import { go, state } from "./state.js";

const NOTICE = "polyview.photos-notice";
const NEGATION = /\b(?:no|not|without|lacks|lacking)\s+(?:an?\s+|any\s+|the\s+)?([\p{L}-]+)/iu;
const [SURE, LIKELY] = [0.8, 0.4]; // minimum probabilities
const INFORMATIVE = 0.8; // minimum area under a calibration's ROC curve: docs/evidence.md
const FAINT = 0.2; // words below this share of the strongest word are faint

/**
 * @param {import("./state.js").State} now
 * @param {any} answer of `/search`
 * @param {import("./explanation.js").Explanation|null} explanation
 * @param {number[]} chosen indices of the shown words
 * @param {import("./main.js").Context} context
 */
export function drawNotes(now, answer, explanation, chosen, context) {
  const byLength = [...context.examples.queries].sort((a, b) => a.length - b.length);
  const suggestions = [...byLength.slice(0, 3), context.examples.algebra].filter((q) => q && q !== now.q);
  const chips = [...likeChips(now), ...wordChips(now, explanation, chosen, answer.hits[0]?.image_id ?? null)];
  const remarks = [...hints(now, answer, context), explanation?.remark && el("span", {}, explanation.remark)];
  const links = el("span.try", {}, "Try: ", ...suggestions.flatMap((q, i) => [i ? " · " : "", askFor(q, q)]));
  redraw(
    document.getElementById("notes"),
    el("div.row", {}, ...chips, links),
    remarks.some(Boolean) && el("div.row.hints", {}, ...remarks),
  );
}

/**
 * A chip for each word, tinted by how much the word adds to the score of an image.
 * @param {import("./state.js").State} now
 * @param {import("./explanation.js").Explanation|null} explanation
 * @param {number[]} chosen indices of the shown words
 * @param {number|null} id of the image
 * @param {(word: number|null) => void} [preview] called while the pointer is on a word
 */
export function wordChips(now, explanation, chosen, id, preview) {
  if (!explanation || explanation.remark) return now.q ? now.q.split(/\s+/).slice(0, 12).map((word) => el("span.chip", {}, word)) : [];
  const sums = explanation.contributions(id ?? -1);
  const most = Math.max(...sums.map(Math.abs), 1e-9);
  return explanation.words.map((word, index) => {
    const place = chosen.indexOf(index);
    const share = Math.max(0, sums[index]) / most;
    const choose = () => go({ words: toggled(chosen, index), view: null, plain: false }, { replace: true });
    const label = `${explanation.negative[index] ? "− " : ""}${word}`;
    const chip = toggle("button.chip", `word ${index}`, place >= 0, choose, label);
    chip.title = `"${word}" adds ${decimal(sums[index])} to the score of this image`;
    chip.onpointerenter = () => preview?.(index);
    chip.onpointerleave = () => preview?.(null);
    const tint = isFunctionWord(word) ? Math.min(0.3, share) : share;
    chip.style.setProperty("--tint", `${Math.round(45 * tint)}%`);
    if (share < FAINT) chip.classList.add("faint");
    if (place >= 0) chip.style.setProperty("--word", COLOURS[place]);
    return chip;
  });
}

/** Returns whether a method's calibration separates correct hits from others. @param {any} method of `/info` */
const isInformative = (method) => (method?.calibration?.area ?? 0) >= INFORMATIVE;

/**
 * The confidence of a hit: "sure", "likely" or empty; always empty if the correct answers are known.
 * @param {any} hit
 * @param {any} method of `/info`
 */
export function confidence({ satisfies, probability }, method) {
  if (typeof satisfies === "boolean" || !isInformative(method)) return "";
  return probability >= SURE ? "sure" : probability >= LIKELY ? "likely" : "";
}

/** The positive and negative example images, each with a button that removes it. */
function likeChips(now) {
  const chip = (id, sign, change) =>
    el("span.example", {},
      sign,
      el("img", { src: api.imageUrl(now, id), alt: `image ${id}` }),
      icon("Remove this example", "×", () => go(change)),
    );
  const without = (ids, id) => ids.filter((other) => other !== id);
  return [
    ...now.more.map((id) => chip(id, "+", { more: without(now.more, id) })),
    ...now.less.map((id) => chip(id, "−", { less: without(now.less, id) })),
  ];
}

function hints(now, answer, context) {
  const hints = [];
  const negated = answer.unsupported.includes("negation") ? NEGATION.exec(now.q) : null;
  if (negated) {
    const rest = now.q.replace(negated[0], " ").replace(/\b(and|but|with)\s*$/i, "").replace(/\s+/g, " ").trim();
    const sum = `${rest.replace(/\s+(and|but|with)$/i, "")} - 0.5: ${negated[1]}`;
    const chip = button(`− ${negated[1]}`, () => ask(sum), "button.chip");
    hints.push(el("span", {}, `"${negated[0]}" is not understood; subtract instead: `, chip));
  }
  for (const { word, nearest, read_as: instead } of answer.unknown) {
    if (negated?.[0].toLowerCase().split(/\s+/)[0] === word.toLowerCase()) continue;
    if (instead) {
      hints.push(el("span", {}, `"${word}" is read as "${instead}".`));
      continue;
    }
    const suggestion = nearest.length ? [" Did you mean ", askFor(now.q.replace(word, nearest[0]), nearest[0]), "?"] : [];
    hints.push(el("span", {}, `"${word}" is unknown.`, ...suggestion));
  }
  if (answer.unsupported.includes("sides")) {
    hints.push(el("span", {}, "Left and right, above and below are not distinguished."));
  }
  if (answer.remark && !answer.unknown.length && !answer.unsupported.length) hints.push(el("span", {}, answer.remark));
  const small = context.info.pack.name === "photos";
  const right = answer.hits.some((hit) => hit.satisfies);
  const sure = isInformative(context.info.methods[answer.method]);
  if (answer.matches === false && sure && !right && !small && !hints.length) {
    hints.push(el("span", {}, "No image seems to match; these are the closest."));
  }
  if (answer.unfamiliar && !small) hints.push(el("span", {}, "This image is unlike the images on which the pack was calibrated."));
  if (small && !localStorage.getItem(NOTICE)) hints.push(notice());
  return hints;
}

/** A notice that stays until the visitor closes it. */
function notice() {
  const models = () => document.getElementById("collection")?.click();
  const clip = button("TinyCLIP (97 MB)", models, "button.link");
  const box = el("span", {}, "This small model often misses; results are guesses. More accurate: ", clip);
  const close = () => {
    localStorage.setItem(NOTICE, "read");
    box.remove();
  };
  box.append(icon("Hide this notice", "×", close));
  return box;
}

const ask = (q) => go({ q, image: null, words: null, view: null, inspect: "" });

/** A link that starts a search. @param {string} query @param {string} words */
function askFor(query, words) {
  const anchor = el("a", { href: `/?q=${encodeURIComponent(query)}` }, words);
  anchor.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    ask(query);
  });
  return anchor;
}

/**
 * Filters by metadata, such as setting and weather.
 * @param {Record<string, Record<string, number>>} facts of `/info`
 * @returns {any[]} a select for each fact
 */
export function factSelects(facts) {
  const { filters } = state();
  return Object.entries(facts).map(([fact, values]) => {
    const own = (filter) => filter.startsWith(`${fact}:`);
    const others = filters.filter((filter) => !own(filter));
    const change = (value) => go({ filters: value ? [...others, value] : others, image: null });
    const option = ([value, count]) => el("option", { value: `${fact}:${value}` }, `${value} (${count})`);
    const options = [el("option", { value: "" }, `any ${fact}`), ...Object.entries(values).map(option)];
    return select(fact, options, filters.find(own) ?? "", change);
  });
}
