/**
 * The URL is the state. Every screen reads the same state and changes it with `go`; Back, Forward,
 * reload and a copied link restore it.
 *
 * Query images and the secret key of an uploaded collection are stored in this tab's session storage;
 * the URL has only the name of the image, and `c=mine` for the collection. A link with `c=mine` that
 * is opened elsewhere has `gone: true`.
 *
 * @typedef {Object} State
 * @property {string} screen "explore", "compare", "mistakes" or "results"
 * @property {string} q query; empty for none
 * @property {string} method key of one method; empty for the pack's best
 * @property {string[]} methods of Compare; empty for its default
 * @property {number|null} image id of the selected image
 * @property {number|null} like id of a query image of the collection
 * @property {string} upload name of a query image file, whose content is stored in this tab
 * @property {number[]} more ids of positive example images
 * @property {number[]} less ids of negative example images
 * @property {string[]} filters "fact:value"
 * @property {string} pack key; empty for the pack that the app was started with
 * @property {string} collection key; empty for the pack's own images
 * @property {boolean} gone whether the collection is an upload of another tab
 * @property {number[]|null} words indices of the chosen words; null for the strongest word
 * @property {string} inspect open tab of Inspect: "", "words", "views", "lens" or "inside"
 * @property {number|null} view chosen view of the selected image
 * @property {string} by the method whose views are shown; empty for the method that searches
 * @property {string} a Mistakes compares the methods `a` and `b` within the first `k` ranks; empty for the default
 * @property {string} cell Mistakes lists the captions of this cell and `kind` in this `order`; `queries` is a file's key
 * @property {number[]} within lowest and highest rank by A, then by B
 * @property {boolean} plain whether images are shown without evidence
 */

const MINE = "mine";
const KEY = "polyview.collection"; // of the uploaded collection's key in session storage
const IMAGE = "polyview.image."; // prefix of the query images in session storage
const MAX_SIDE = 640; // pixels; encoders read at most 384
const MAX_IMAGES = 8; // query images in session storage

const text = (name) => ({ name, read: (all) => all[0] ?? "", write: (value) => (value ? [value] : []) });
const number = (name) => ({
  name,
  read: (all) => (/^\d+$/.test(all[0] ?? "") ? Number(all[0]) : null),
  write: (value) => (value === null ? [] : [String(value)]),
});
const list = (name) => ({
  name,
  read: (all) => (all[0] ? all[0].split(",") : []),
  write: (value) => (value.length ? [value.join(",")] : []),
});
const numbers = (name) => ({
  name,
  read: (all) => (all[0] ?? "").split(",").filter((part) => /^\d+$/.test(part)).map(Number),
  write: list(name).write,
});

/** For each field, `read` parses the values of its URL parameter `name`, and `write` returns them. @type {Record<string, any>} */
const FIELDS = {
  screen: { name: "screen", read: (all) => all[0] || "explore", write: (v) => (v === "explore" ? [] : [v]) },
  q: text("q"),
  method: text("method"),
  methods: list("methods"),
  image: number("image"),
  like: number("like"),
  upload: text("file"),
  more: numbers("more"),
  less: numbers("less"),
  filters: { name: "only", read: (all) => all, write: (value) => value },
  pack: text("pack"),
  words: {
    name: "words",
    read: (all) => (all[0] === undefined ? null : numbers("words").read(all)),
    write: (value) => (value === null ? [] : [value.join(",")]),
  },
  inspect: text("inspect"),
  ...Object.fromEntries(["a", "b", "cell", "kind", "order", "queries"].map((name) => [name, text(name)])),
  k: number("k"),
  within: numbers("within"),
  view: number("view"),
  by: text("by"),
  plain: { name: "plain", read: (all) => all[0] === "1", write: (value) => (value ? ["1"] : []) },
};

/** The state of a URL. @param {string} search its query string @returns {State} */
export function parse(search) {
  const query = new URLSearchParams(search);
  const state = {};
  for (const [key, field] of Object.entries(FIELDS)) state[key] = field.read(query.getAll(field.name));
  const collection = query.get("c") ?? "";
  const own = collection === MINE ? sessionStorage.getItem(KEY) ?? "" : collection;
  return { ...state, collection: own, gone: collection === MINE && !own };
}

/** The path and query string of a state, without the key of an upload. @param {State} state @returns {string} */
export function link(state) {
  const query = new URLSearchParams();
  for (const [key, field] of Object.entries(FIELDS)) {
    for (const value of field.write(state[key])) query.append(field.name, value);
  }
  if (isPrivate(state.collection) || state.gone) query.set("c", MINE);
  else if (state.collection) query.set("c", state.collection);
  const search = query.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  return search ? `/?${search}` : "/";
}

/** Returns whether a collection has a user's images, not those of a pack. @param {string} key */
export const isOwn = (key) => /^(upload|folder)-/.test(key);

/** Returns whether a collection is an upload, whose key must not be shared. @param {string} key */
export const isPrivate = (key) => key.startsWith("upload-");

/** @type {State} */
let current = parse(location.search);
/** @type {Set<(state: State, before: State) => void>} */
const listeners = new Set();

/** The current state. @returns {State} */
export const state = () => current;

/**
 * Changes the state, and the URL with it.
 * @param {Partial<State>} change
 * @param {{replace?: boolean}} [options] replace: do not add an entry to the history
 */
export function go(change, { replace = false } = {}) {
  const before = current;
  current = { ...before, ...change };
  if ("collection" in change) {
    current.gone = false;
    if (isPrivate(current.collection)) sessionStorage.setItem(KEY, current.collection);
  }
  const url = link(current);
  if (url !== link(before)) history[replace ? "replaceState" : "pushState"](null, "", url);
  notify(before);
}

/** Calls a function after every change of the state. @param {(state: State, before: State) => void} callback */
export function subscribe(callback) {
  listeners.add(callback);
}

function notify(before) {
  for (const callback of listeners) callback(current, before);
}

addEventListener("popstate", () => {
  const before = current;
  current = parse(location.search);
  notify(before);
});

/**
 * Stores an image file for searching.
 * @param {File} file
 * @returns {Promise<string>} the name to put into the state
 * @throws {Error} with a sentence, if the browser cannot decode the file
 */
export async function storeImage(file) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} cannot be read as an image. Use JPEG, PNG or WebP.`);
  });
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff"; // behind transparent pixels
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const name = `${Date.now().toString(36)}-${file.name.replace(/[^\w.-]+/g, "_").slice(-40)}`;
  const stored = Object.keys(sessionStorage).filter((key) => key.startsWith(IMAGE)).sort();
  for (const key of stored.slice(0, Math.max(0, stored.length - MAX_IMAGES + 1))) sessionStorage.removeItem(key);
  sessionStorage.setItem(IMAGE + name, canvas.toDataURL("image/jpeg", 0.92));
  return name;
}

/** The content of a query image as a data URI; empty if this tab does not have it. @param {string} name */
export const storedImage = (name) => (name ? sessionStorage.getItem(IMAGE + name) ?? "" : "");
