/**
 * Evidence of a query over many images: the arrays of `/explain/hits`, one column a word.
 *
 * @typedef {Object} ImageEvidence
 * @property {number[][]} cells (cells, words): what each cell and word adds to the score
 * @property {number[]} box part of the image that the cells cover
 * @property {number} score
 * @property {number} base part of the score that belongs to no cell
 * @property {number[]} seconds of a clip's frames, where the cells are frames
 * @property {number[]} frames image ids of these frames
 */

import { COLOURS } from "./evidence.js";

const MAX_WORDS = 4; // that are shown at once
const WEAK = 0.25; // share of the strongest cell; an image below it has no evidence to draw
const FUNCTION_WORDS = new Set(
  "a an the of in on at to is are be and or with by for from it its this that there can some as i you".split(" "),
);

/** Whether a word only connects others. @param {string} word */
export const isFunctionWord = (word) => FUNCTION_WORDS.has(word.toLowerCase());

export class Explanation {
  /** @param {any} answer of `/explain/hits` */
  constructor(answer) {
    const columns = columnsOf(answer);
    this.words = columns.map(({ word }) => word);
    this.negative = columns.map(({ weight }) => weight < 0);
    this.grid = answer.grid;
    /** Rows and columns of a clip's frames; null where cells are places in one image. */
    this.sheet = answer.sheet;
    /** @type {Map<number, ImageEvidence>} */
    this.by = new Map();
    this.add(answer);
    this.most = this.words.map((_, word) => {
      let most = 1e-9;
      for (const { cells } of this.by.values()) for (const cell of cells) most = Math.max(most, cell[word]);
      return most;
    });
  }

  /** Adds the images of a further answer to the same query. @param {any} answer */
  add(answer) {
    const columns = columnsOf(answer);
    answer.images.forEach((id, i) => {
      const cells = answer.cells[i].map((row) =>
        columns.map(({ start, count }) => {
          let sum = 0;
          for (let c = start; c < start + count; c += 1) sum += row[c];
          return sum;
        }),
      );
      this.by.set(id, {
        cells,
        box: answer.boxes[i],
        score: answer.scores[i],
        base: answer.base[i],
        seconds: answer.seconds[i] ?? [],
        frames: answer.frames[i] ?? [],
      });
    });
  }

  /** What each word adds to an image's score. @param {number} id @returns {number[]} */
  contributions(id) {
    const sums = this.words.map(() => 0);
    for (const cell of this.by.get(id)?.cells ?? []) cell.forEach((value, word) => (sums[word] += value));
    return sums;
  }

  /** The words to show: those chosen, or the one that adds most to the image. @param {number[]|null} chosen @param {number|null} id @returns {number[]} */
  shown(chosen, id) {
    if (chosen) return chosen.filter((word) => word < this.words.length).slice(0, MAX_WORDS);
    const image = id !== null && this.by.has(id) ? id : this.by.keys().next().value;
    if (image === undefined || !this.words.length) return [];
    const sums = this.contributions(image);
    const candidates = this.words.map((_, word) => word).filter((word) => !isFunctionWord(this.words[word]));
    if (!candidates.length) candidates.push(...this.words.keys());
    return [candidates.reduce((best, word) => (sums[word] > sums[best] ? word : best))];
  }

  /**
   * Maps of words over an image, 1 for the strongest cell of the first page.
   * @param {number} id
   * @param {number[]} words
   * @param {boolean} [alone] the image is looked at by itself: weak evidence is drawn stronger
   * @returns {import("./evidence.js").Map_[]}
   */
  maps(id, words, alone = false) {
    const { cells } = this.by.get(id);
    return words.map((word, place) => {
      const own = Math.max(...cells.map((cell) => cell[word]));
      const most = alone ? Math.max(own, WEAK * this.most[word]) : this.most[word];
      return { values: cells.map((cell) => Math.min(1, Math.max(0, cell[word]) / most)), colour: COLOURS[place] };
    });
  }
}

/**
 * A term of words has one column a word; an image that is asked with has one column for each of
 * its own cells, which belong together.
 */
function columnsOf({ words, terms, cells }) {
  const total = cells[0]?.[0]?.length ?? 0;
  const images = terms.filter(({ count }) => !count).length;
  const wide = images ? (total - words.length) / images : 0;
  const columns = [];
  let start = 0;
  let word = 0;
  for (const { count, weight } of terms) {
    if (!count) {
      columns.push({ word: "the image", weight, start, count: wide });
      start += wide;
    }
    for (let w = 0; w < count; w += 1, start += 1, word += 1) columns.push({ word: words[word], weight, start, count: 1 });
  }
  return columns;
}
