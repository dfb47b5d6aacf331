/** Words for the named arrays that methods show of themselves (`Method.inside`), and how each is drawn. */

const POOLING =
  "How much the largest, the second largest … value of every dimension counts (the coefficients of VSE∞, sections 3.2 and 5.3). Average pooling would be a flat line, max pooling would have all its weight at 1.";
const CODES =
  "The cosine of every two learned view codes (MVAM, section 3.3, Eq. 7). They are the same for every query; codes near 1 ask for the same.";
const BEST_OF_EACH = "The sum of the highest value of each text block (Eq. 2).";
const COSINES = [-1, 1];

/** Of each array its title, its meaning, how it is drawn, and the ends of its scale. */
const ARRAYS = {
  view_pairs: { title: "Every image view with every text view", meaning: "The scores of all pairs of views. The score is the marked one, or the mean of the marked ones (PVSE, sections 3.4 and 5.3)." },
  affinity: { title: "Affinity of blocks", meaning: "The cosine of every block of the image's views with every block of the text (AVSE, section 3.2, Eq. 1). MaxSim would add the highest of each column.", limits: COSINES },
  plan: { title: "Sinkhorn plan", meaning: "How the blocks are matched (section 3.2): the rows and columns of blocks add up to 1, and what finds no partner goes to a dustbin. The score adds the marked cells, the highest of each text block (Eq. 2).", dustbin: true },
  sinkhorn_score: { title: "Score by Sinkhorn", meaning: BEST_OF_EACH },
  maxsim_score: { title: "Score by MaxSim", meaning: BEST_OF_EACH },
  image_pooling: { title: "How the image is pooled", meaning: POOLING, kind: "curve" },
  text_pooling: { title: "How the text is pooled", meaning: POOLING, kind: "curve" },
  image_codes: { title: "The image's view codes", meaning: CODES, limits: COSINES },
  text_codes: { title: "The text's view codes", meaning: CODES, limits: COSINES },
  attention_spread: { title: "Spread of each view's attention", meaning: "The entropy of each view's attention (Eq. 7), from 0, one element alone, to 1, all alike. The diversity loss (section 3.4, Eq. 10) wants views that look at few elements, each at others.", kind: "curve" },
};

const KNOBS = { match: "Blocks are matched by", iterations: "Sinkhorn iterations" };

/** What a setting is called. @param {string} name @returns {string} */
export const knobTitle = (name) => KNOBS[name] ?? name;

/**
 * @param {{name: string, values: any, axes: string[], marks: number[][]}} array
 * @param {number} views of the image
 * @returns {any} `kind` ("matrix", "curve" or "number"), and what `heatmap` and `curves` take
 */
export function describeArray(array, views) {
  const { title, meaning, kind, limits = null, dustbin = false } = ARRAYS[array.name] ?? { title: array.name, meaning: "" };
  if (!array.axes.length) return { kind: "number", title, meaning, values: array.values };
  const [rows, columns] = [array.values.length, array.values[0].length];
  const blocks = Math.max(1, Math.floor((rows - Number(dustbin)) / views)); // of a view
  const names = (axis, count) =>
    Array.from({ length: count }, (_, place) => {
      if (dustbin && place === count - 1) return "dustbin";
      if (axis === "rank") return String(place + 1);
      if (axis === "side") return ["image", "text"][place];
      if (axis === "block") return `view ${Math.floor(place / blocks) + 1}, block ${(place % blocks) + 1}`;
      return `${axis.replace("_", " ")} ${place + 1}`;
    });
  const drawn = kind === "curve" && columns > 1 ? "curve" : "matrix";
  return { ...array, kind: drawn, title, meaning, limits, rows: names(array.axes[0], rows), columns: names(array.axes[1], columns) };
}
