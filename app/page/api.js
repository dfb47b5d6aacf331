/**
 * The only module that sends requests to the server. A function that sends a request returns the
 * answer of its route of `/api/v1` (docs/api.md), or throws a `Refusal` with the server's message.
 *
 * A request has a *lane*: a newer request of the same lane aborts the older one, so an outdated
 * answer never replaces a newer one. An aborted request never settles.
 */

const BASE = "/api/v1";
const RETRIES = 3;
const PATIENCE = 10; // seconds; if the server asks for a longer wait, the error is shown at once
/** The controller of the newest request of each lane. @type {Map<string, AbortController>} */
const lanes = new Map();

/** An error message of the server. */
export class Refusal extends Error {
  /** @param {string} sentence @param {number} status of HTTP; 0 without an answer */
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

/**
 * Sends a request; while the server is busy, repeats it at most `RETRIES` times.
 * @param {string} path below `/api/v1`
 * @param {Record<string, any>} [parameters] empty values are left out
 * @param {{lane?: string, method?: string, body?: BodyInit, json?: any}} [options]
 * @returns {Promise<any>} a Blob if the answer is a file
 */
export async function ask(path, parameters = {}, { lane = "", method = "GET", body, json } = {}) {
  let signal;
  if (lane) {
    lanes.get(lane)?.abort();
    const controller = new AbortController();
    lanes.set(lane, controller);
    signal = controller.signal;
  }
  const headers = json === undefined ? undefined : { "content-type": "application/json" };
  const options = { method, signal, headers, body: json === undefined ? body : JSON.stringify(json) };
  for (let tries = 0; ; tries += 1) {
    let response;
    try {
      response = await fetch(`${BASE}${path}${queryString(parameters)}`, options);
      const isJson = response.headers.get("content-type")?.startsWith("application/json");
      if (response.ok) return await (isJson ? response.json() : response.blob());
    } catch (error) {
      if (signal?.aborted) return new Promise(() => {});
      throw new Refusal("The server does not answer. Is the app still running?", 0);
    }
    const wait = Number(response.headers.get("retry-after") ?? 1); // seconds
    const busy = response.status === 503 || response.status === 429;
    if (busy && tries < RETRIES && wait <= PATIENCE) {
      await pause(1000 * wait);
      if (signal?.aborted) return new Promise(() => {});
      continue;
    }
    const answer = await response.json().catch(() => ({}));
    if (signal?.aborted) return new Promise(() => {});
    throw new Refusal(answer.error ?? `The server answered ${response.status}.`, response.status);
  }
}

/** @param {Record<string, any>} parameters empty values are left out, except `q` @returns {string} */
function queryString(parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value === null || value === undefined || (value === "" && name !== "q")) continue;
    if (Array.isArray(value) && name !== "filter") {
      if (value.length) query.set(name, value.join(","));
    } else {
      for (const item of [value].flat()) query.append(name, String(item));
    }
  }
  const search = query.toString();
  return search ? `?${search}` : "";
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** @param {string} path @param {any} json */
const post = (path, json) => ask(path, {}, { method: "POST", json });

/** The keys of the state's pack and collection. @param {{pack: string, collection: string}} state */
const keysOf = ({ pack, collection }) => ({ pack, collection });

/**
 * Hits for the state's query, example images or both.
 * @param {import("./state.js").State} state
 * @param {number} k
 * @param {string} [image] data URI of an image outside of the collection
 */
export const search = (state, k, image = "") => {
  const { q, method, like, more, less, filters } = state;
  const parameters = { q, method, k, filter: filters, layout: true, ...keysOf(state) };
  if (image) return ask("/search", parameters, { lane: "search", method: "POST", json: { image } });
  return ask("/search", { ...parameters, like, more, less }, { lane: "search" });
};

/**
 * Returns the evidence of several images, as arrays over the images.
 * @param {import("./state.js").State} state
 * @param {number[]} images
 * @param {string} method
 * @param {{lane?: string, image?: string}} [options] image: data URI of the query image
 */
export const explainHits = (state, images, method, { lane = "", image = "" } = {}) => {
  const { q, like, more, less } = state;
  const parameters = { q, images, method, ...keysOf(state) };
  if (image) return ask("/explain/hits", parameters, { lane, method: "POST", json: { content: image } });
  return ask("/explain/hits", { ...parameters, like, more, less }, { lane });
};

/** Evidence of one image, per view. @param {import("./state.js").State} state @param {number} image @param {string} method */
export const explain = (state, image, method) => {
  const { q, like } = state;
  return ask("/explain", { q, image, method, like, per_view: true, ...keysOf(state) }, { lane: "explain" });
};

/**
 * Views of one image, and how the query matches them.
 * @param {import("./state.js").State} state
 * @param {number} image
 * @param {string} method
 * @param {string[]} settings "name:value" of the method's knobs
 * @param {string} lane
 */
export const views = async (state, image, method, settings, lane) => {
  const answer = await ask("/views", { image, method, q: state.q, settings, ...keysOf(state) }, { lane });
  for (const view of answer.views) view.attention = view.attention?.flat() ?? null;
  return answer;
};

/** @param {import("./state.js").State} state @param {string[]} methods @param {number} k */
export const compare = (state, methods, k) =>
  ask("/compare", { q: state.q, methods, k, like: state.like, ...keysOf(state) }, { lane: "compare" });

/** @param {import("./state.js").State} state @param {string} method @param {number[]} weights 0 to 1, one for each view @param {number} k */
export const lens = (state, method, weights, k) =>
  ask("/lens", { q: state.q, method, weights, k, ...keysOf(state) }, { lane: "lens" });

/** The indexed frames of a clip as hits. @param {import("./state.js").State} state @param {number} image @param {string} method */
export const timeline = (state, image, method) =>
  ask("/timeline", { image, q: state.q, method, ...keysOf(state) }, { lane: "timeline" });

/** @param {import("./state.js").State} state @param {string} method */
export const collapse = (state, method) => ask("/collapse", { method, ...keysOf(state) }, { lane: "collapse" });

/** Returns captions that one method finds and another misses; with the format "csv", all captions of the cell. @param {import("./state.js").State} state @param {number} count @param {string} [format] */
export const mistakes = ({ a, b, k, cell, kind, order, within, queries, ...state }, count, format = "") =>
  ask("/mistakes", { a, b, k, cell, kind, order, within, queries, count, format, ...keysOf(state) },
    { lane: `mistakes ${count} ${format}` });

/** Uploads a CSV file of queries. @param {import("./state.js").State} state @param {Blob} body */
export const addQueries = (state, body) => ask("/mistakes/queries", keysOf(state), { method: "POST", body });

/** @param {import("./state.js").State} state */
export const info = (state) => ask("/info", keysOf(state));

/** @param {import("./state.js").State} state */
export const examples = (state) => ask("/examples", keysOf(state));

/** @param {import("./state.js").State} state */
export const results = (state) => ask("/results", keysOf(state));

/**
 * The URL of an image.
 * @param {import("./state.js").State} state
 * @param {number} image id
 * @param {boolean} [large] up to 2,048 pixels instead of 320
 */
export const imageUrl = (state, image, large = false) =>
  `${BASE}/image/${image}${queryString({ large: large || "", ...keysOf(state) })}`;

/** An image in the largest size that the server sends. @param {import("./state.js").State} state @param {number} image @returns {Promise<ArrayBuffer>} */
export const imageFile = async (state, image) =>
  (await ask(`/image/${image}`, { large: true, ...keysOf(state) })).arrayBuffer();

/** The URL of a clip's file. @param {import("./state.js").State} state @param {number} image */
export const clipUrl = (state, image) => `${BASE}/clip/${image}${queryString(keysOf(state))}`;

/** Packs on this machine, packs to download, and the accepted addresses. */
export const packs = () => ask("/packs");

export const collections = () => ask("/collections");

/** Opens a folder or ZIP archive on the app's machine. @param {string} place */
export const openPlace = (place) => post("/collections/open", { place });

/** Begins an upload; its key is secret. */
export const newUpload = () => post("/collections/new", {});

/** @param {string} collection @param {string} name @param {Blob} content */
export const addFile = (collection, name, content) =>
  ask("/collections/file", { collection, name }, { method: "POST", body: content });

/** @param {string} collection */
export const startUpload = (collection) => post("/collections/start", { collection });

/** @param {{pack: string, collection: string}} state */
export const progress = (state) => ask("/collections/progress", keysOf(state));

/** @param {{pack: string, collection: string}} state */
export const stopReading = (state) => post("/collections/stop", keysOf(state));

/** @param {{pack: string, collection: string}} state */
export const resumeReading = (state) => post("/collections/resume", keysOf(state));

/** Checks whether a pack preprocesses images and texts as its model expects. @param {{pack: string, collection: string}} state */
export const checkPack = (state) => ask("/packs/check", keysOf(state));

/** The files that a download would fetch. @param {string} address @param {string} kind "pack" or "clip" */
export const lookPack = (address, kind) => post("/packs/look", { address, kind });

/** @param {string} address @param {string} kind */
export const fetchPack = (address, kind) => post("/packs/fetch", { address, kind });

/** @param {string} job */
export const packJob = (job) => ask("/packs/job", { job });

/** @param {string} job */
export const cancelPack = (job) => post("/packs/cancel", { job });
