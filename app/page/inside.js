/** Titles and descriptions of the arrays that methods return from `Method.inside`, and how to draw them. */

const POOLING = `The weights of the largest, the second-largest … value of every dimension (the coefficients of VSE∞,
  sections 3.2 and 5.3). Average pooling would be a flat line; max pooling would have its whole weight at 1.`;
const CODES = `The cosine of each pair of learned view codes (MVAM, section 3.3, Eq. 7). It does not depend on the
  query; codes with a cosine near 1 attend to the same elements.`;
const SINKHORN_SCORE = "The sum of the plan's highest value for each text block (Eq. 2).";
const MAXSIM_SCORE = "The sum of the highest cosine for each text block, as in the authors' code.";

/** Title and meaning of each array. */
const ARRAYS = {
  view_pairs: [
    "Pairs of image and text views",
    `The scores of all pairs of views. The total is the marked score, or the mean of the marked ones (PVSE, sections
      3.4 and 5.3).`,
  ],
  affinity: [
    "Affinity of blocks",
    `The cosine of every block of the image's views with every block of the text (AVSE, section 3.2, Eq. 1). MaxSim
      adds the highest of each column.`,
  ],
  plan: [
    "Sinkhorn plan",
    `How the blocks are matched (section 3.2): the rows and columns of blocks add up to 1, and unmatched blocks
      go to a dustbin. The score adds the marked cells, the highest of each text block (Eq. 2).`,
  ],
  sinkhorn_score: ["Score by Sinkhorn", SINKHORN_SCORE],
  maxsim_score: ["Score by MaxSim", MAXSIM_SCORE],
  image_pooling: ["How the image is pooled", POOLING],
  text_pooling: ["How the text is pooled", POOLING],
  image_codes: ["The image's view codes", CODES],
  text_codes: ["The text's view codes", CODES],
  attention_spread: [
    "Spread of each view's attention",
    `The entropy of each view's attention (Eq. 7), from 0 (one element) to 1 (all elements equally). The diversity
      loss (section 3.4, Eq. 10) favours views that attend to few and different elements.`,
  ],
};
const CURVES = ["image_pooling", "text_pooling", "attention_spread"];
const COSINES = ["affinity", "image_codes", "text_codes"];
const KNOBS = {
  match: "Blocks are matched by",
  iterations: "Sinkhorn iterations",
  sinkhorn: "Sinkhorn",
  maxsim: "MaxSim",
};

/** The title of a setting or of one of its options. @param {string} name @returns {string} */
export const knobTitle = (name) => KNOBS[name] ?? name;

/**
 * @param {{name: string, values: any, axes: string[], marks: number[][]}} array
 * @param {number} views of the image
 * @returns {any} `kind` ("matrix", "curve" or "number"), and the fields that `heatmap` or `curves` draws
 */
export function describeArray(array, views) {
  const [title, meaning] = ARRAYS[array.name] ?? [array.name, ""];
  if (!array.axes.length) return { kind: "number", title, meaning, values: array.values };
  const counts = [array.values.length, array.values[0].length];
  const dustbin = array.name === "plan";
  const blocks = Math.max(1, Math.floor((counts[0] - Number(dustbin)) / views)); // in a view
  const label = (axis, count, place) => {
    if (dustbin && place === count - 1) return "dustbin";
    if (axis === "rank") return String(place + 1);
    if (axis === "side") return ["image", "text"][place];
    if (axis === "block") return `view ${Math.floor(place / blocks) + 1}, block ${(place % blocks) + 1}`;
    return `${axis.replace("_", " ")} ${place + 1}`;
  };
  const names = (axis) => Array.from({ length: counts[axis] }, (_, i) => label(array.axes[axis], counts[axis], i));
  const kind = CURVES.includes(array.name) && counts[1] > 1 ? "curve" : "matrix";
  const limits = COSINES.includes(array.name) ? [-1, 1] : null;
  return { ...array, kind, title, meaning, limits, rows: names(0), columns: names(1) };
}
