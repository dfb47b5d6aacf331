/**
 * Evidence of a query over many images: the arrays of `/explain/hits`, one column for each word.
 *
 * @typedef {Object} ImageEvidence
 * @property {number[][]} cells (cells, words): what each cell and word adds to the score
 * @property {number[]} box part of the image that the cells cover
 * @property {number} score
 * @property {number[]} seconds of a clip's frames, if the cells are frames
 */

import { COLOURS, drawEvidence, drawStrip } from "./evidence.js";

const MAX_WORDS = 4; // shown at once
const WEAK = 0.25; // share of the strongest cell; an image below it has no evidence to draw
const UNREAD = "No word of the query is known, so the order of the images means nothing.";
const FUNCTION_WORDS = new Set(
  "a an the of in on at to is are be and or with by for from it its this that there can some as i you".split(" "),
);

/** Returns whether a word is a function word. @param {string} word */
export const isFunctionWord = (word) => FUNCTION_WORDS.has(word.toLowerCase());

/** Formats a number with a fixed count of decimal digits and "−" for minus; 0 has no sign. @param {number} value @param {number} [digits] */
export const decimal = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=[0.]+$)/, "").replace("-", "−");

/** The chosen words after a click on a word. @param {number[]} chosen @param {number} word @returns {number[]} */
export const toggled = (chosen, word) =>
  chosen.includes(word) ? chosen.filter((other) => other !== word) : [...chosen, word].slice(-MAX_WORDS);

export class Explanation {
  /** @param {any} answer of `/explain/hits` */
  constructor(answer) {
    this.columns = columnsOf(answer);
    this.words = this.columns.map(({ word }) => word);
    this.negative = this.columns.map(({ weight }) => weight < 0);
    this.grid = answer.grid;
    const parts = this.columns.filter(({ start }) => start >= 0); // words, and query images
    const unread = parts.length > 0 && parts.every(({ unknown }) => unknown);
    /** The reason why there is no map; empty if there is one. */
    this.remark = unread ? UNREAD : answer.remark;
    /** Rows and columns of a clip's frames; null if the cells belong to one image. */
    this.sheet = answer.sheet;
    /** @type {Map<number, ImageEvidence>} */
    this.by = new Map();
    this.add(answer);
    /** The strongest cell of each word in the first answer. */
    this.most = this.words.map((_, word) => {
      let most = 1e-9;
      for (const { cells } of this.by.values()) for (const cell of cells) most = Math.max(most, cell[word]);
      return most;
    });
    /** The sum that each word adds to the scores of all images of the first answer. */
    this.sums = this.words.map(() => 0);
    for (const id of answer.images) this.contributions(id).forEach((sum, word) => (this.sums[word] += sum));
  }

  /** Adds the images of a further answer to the same query. @param {any} answer */
  add(answer) {
    answer.images.forEach((id, i) => {
      const cells = answer.cells[i].map((row, cell) =>
        this.columns.map(({ start, count }) => {
          if (start < 0) return answer.whole_sentence[i][cell];
          let sum = 0;
          for (let c = start; c < start + count; c += 1) sum += row[c];
          return sum;
        }),
      );
      this.by.set(id, {
        cells,
        box: answer.boxes[i],
        score: answer.scores[i],
        seconds: answer.seconds[i] ?? [],
      });
    });
  }

  /** Returns the contribution of each word to an image's score. @param {number} id @returns {number[]} */
  contributions(id) {
    const sums = this.words.map(() => 0);
    for (const cell of this.by.get(id)?.cells ?? []) cell.forEach((value, word) => (sums[word] += value));
    return sums;
  }

  /** The contributions of some words, as a sentence. @param {number} id @param {number[]} words */
  sentence(id, words) {
    const sums = this.contributions(id);
    const score = this.by.get(id)?.score;
    if (score === undefined) return "";
    const known = words.filter((word) => word in sums);
    const rest = score - known.reduce((total, word) => total + sums[word], 0);
    const within = rest > -0.005 && known.every((word) => sums[word] > -0.005); // each is a part of the score
    const parts = known.map((word) => `"${this.words[word]}" contributes ${decimal(sums[word])}`).join("; ");
    return parts && `${parts}${within ? " of the score" : "; the whole score is"} ${decimal(score)}`;
  }

  /** The words to show: the chosen words, or the word that adds most to the first page. @param {number[]|null} chosen @returns {number[]} */
  shown(chosen) {
    if (this.remark) return [];
    if (chosen) return chosen.filter((word) => word < this.words.length).slice(0, MAX_WORDS);
    if (!this.words.length) return [];
    const isContentWord = ({ word, start, unknown }) => start >= 0 && !unknown && !isFunctionWord(word);
    const candidates = [...this.words.keys()].filter((index) => isContentWord(this.columns[index]));
    if (!candidates.length) candidates.push(...[...this.words.keys()].filter((index) => !this.columns[index].unknown));
    return [candidates.reduce((best, word) => (this.sums[word] > this.sums[best] ? word : best))];
  }

  /**
   * Maps of words over an image, 1 for the strongest cell of the first page.
   * @param {number} id
   * @param {number[]} words indices; unknown ones are left out
   * @param {boolean} [alone] whether the image is shown by itself; weak evidence is then drawn stronger
   * @returns {import("./evidence.js").Map_[]}
   */
  maps(id, words, alone = false) {
    const cells = this.by.get(id)?.cells ?? [];
    return words.flatMap((word, place) => {
      if (!(word in this.words)) return [];
      const own = Math.max(...cells.map((cell) => cell[word]));
      const most = alone ? Math.max(own, WEAK * this.most[word]) : this.most[word];
      return [{ values: cells.map((cell) => Math.min(1, Math.max(0, cell[word]) / most)), colour: COLOURS[place] }];
    });
  }

  /**
   * Draws the evidence of words: over an image, or along the frames of a clip.
   * @param {HTMLCanvasElement} canvas
   * @param {CanvasImageSource} image
   * @param {number} id
   * @param {number[]} words
   * @param {boolean} [alone] see `maps`
   */
  draw(canvas, image, id, words, alone = false) {
    const maps = this.maps(id, words, alone);
    if (this.sheet) drawStrip(canvas, maps);
    else drawEvidence(canvas, image, maps, this.grid, this.by.get(id).box);
  }
}

/**
 * A term of words has one column for each word; a query image has one for each of its cells, which
 * are added up. The part that an encoder cannot split over words is another column.
 */
function columnsOf({ words, terms, cells, whole_sentence: whole }) {
  const total = cells[0]?.[0]?.length ?? 0;
  const images = terms.filter((term) => !term.count && !term.words).length;
  const wide = images ? (total - words.length) / images : 0;
  const columns = [];
  let start = 0;
  let word = 0;
  for (const { count, weight, words: text } of terms) {
    if (!count && !text) {
      columns.push({ word: "the image", weight, start, count: wide });
      start += wide;
    }
    const typed = text.split(/\s+/);
    for (let w = 0; w < count; w += 1, start += 1, word += 1) {
      const unknown = words[word] === "[UNK]";
      columns.push({ word: unknown && typed.length === count ? typed[w] : words[word], weight, start, count: 1, unknown });
    }
  }
  if (whole.some((image) => image.some(Boolean))) {
    columns.push({ word: columns.length ? "whole sentence" : "the sentence", weight: 1, start: -1, count: 1 });
  }
  return columns;
}
