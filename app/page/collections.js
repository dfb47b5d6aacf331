/**
 * The collection menu: collections, the user's own images, packs from the Hub, and this machine. A
 * line at the bottom of the window shows the progress of reading a collection.
 */

import * as api from "./api.js";
import { announce, button, el, icon, select, toast } from "./dom.js";
import { go, isOwn, state } from "./state.js";

const MAX_CONCURRENT = 3; // concurrent uploads
const MAX_BYTES = 50e6; // bytes of an uploaded file
const MAX_FILES = 1000; // files of an upload
const INTERVAL = 1000; // milliseconds between requests for progress
const KINDS = [
  ["pack", "A pack", "owner/name"],
  ["clip", "CLIP or SigLIP, zero-shot", "wkcn/TinyCLIP-ViT-8M-16-Text-3M-YFCC15M"],
];
const dialog = () => /** @type {HTMLDialogElement} */ (document.getElementById("menu"));
const digits = (bytes) => ({ maximumFractionDigits: bytes < 1e7 ? 1 : 0 });
const size = (bytes) => `${(bytes / 1e6).toLocaleString("en", digits(bytes))}\u00a0MB`;
const pause = () => new Promise((done) => setTimeout(done, INTERVAL));
const problem = (sentence) => el("p.problem", { role: "alert" }, sentence);
/** The key of the collection in use if it has the user's own images, which other packs can search. */
let own = "";
/** The example queries of the collection in use. @type {string[]} */
let examples = [];

/** Opens the menu. @param {import("./main.js").Context} context */
export async function open(context) {
  const box = dialog();
  const body = el("div.choices", {}, el("p", {}, "Loading…"));
  const title = el("h2", { id: "menu-title" }, "Collections and models");
  box.replaceChildren(el("header", {}, title, icon("Close", "×", () => box.close())), body);
  box.onclick = (event) => {
    if (event.target === box) box.close(); // returning false would cancel the click
  };
  if (!box.open) box.showModal();
  try {
    const now = context.info && api.info(state()); // files may have been read meanwhile
    const [packs, { collections }, info] = await Promise.all([api.packs(), api.collections(), now]);
    const key = info?.gallery.key ?? "";
    own = isOwn(key) ? key : "";
    const parts = [images(packs.packs, collections, key), ownImages(packs), models(packs, info?.pack.name)];
    if (info) parts.push(machineFacts(info), leftOutFiles(info.gallery));
    body.replaceChildren(...parts.filter(Boolean));
  } catch (error) {
    body.replaceChildren(problem(error.message));
  }
}

/** Uploads dropped or chosen files as a new collection. @param {File[]} files */
export async function upload(files) {
  const fits = files.filter((file) => file.size && file.size <= MAX_BYTES).slice(0, MAX_FILES);
  const count = fits.length;
  if (!count) {
    toast("No file can be uploaded: choose images of at most 50 MB.");
    return;
  }
  if (count < files.length) {
    toast(`${files.length - count} of ${files.length} files are left out: the limit is 1,000 files of 50 MB each.`);
  }
  dialog().close();
  let sent = 0;
  const showProgress = () => showLine(`uploading files: ${sent} of ${count}`, sent, count);
  showProgress();
  try {
    const { collection } = await api.newUpload();
    const queue = [...fits];
    const send = async () => {
      for (let file = queue.shift(); file; file = queue.shift()) {
        await api.addFile(collection, file.name, file);
        sent += 1;
        showProgress();
      }
    };
    await Promise.all(Array.from({ length: MAX_CONCURRENT }, send));
    const { pack } = await api.startUpload(collection);
    use(pack, collection);
  } catch (error) {
    showLine("");
    toast(error.message);
  }
}

/** Switches to a pack and a collection. Keeps the query, unless it is an example of the previous collection. */
function use(pack, collection) {
  dialog().close();
  const q = examples.includes(state().q) ? "" : state().q;
  const ofImages = { like: null, more: [], less: [], filters: [], image: null, inspect: "", words: null };
  const ofPack = { method: "", methods: [], by: "", view: null, a: "", b: "", kind: "", within: [], queries: "" };
  go({ pack, collection, q, ...ofImages, ...ofPack });
}

function images(packs, collections, current) {
  const card = ({ key, title, pictures }) => {
    const pack = packs.find((each) => each.key === key);
    const about = pack ? `${pack.description.split(". ")[0].replace(/\.$/, "")}.` : "A folder on this machine.";
    const facts = [`${pictures.toLocaleString("en")} images`, pack?.licence, pack && size(pack.bytes)];
    const image = api.imageUrl({ ...state(), pack: "", collection: key }, 0);
    return el("button.card", { type: "button", "aria-pressed": String(key === current), onclick: () => use("", key) },
      el("img", { alt: "", loading: "lazy", src: image, onerror: (event) => event.target.remove() }),
      el("span", {}, el("b", {}, title), el("span", {}, about), el("small", {}, facts.filter(Boolean).join(" · "))),
    );
  };
  return el("section", {}, el("div.cards", {}, ...collections.map(card)));
}

function ownImages({ private: local }) {
  const input = (properties) => {
    const field = el("input", { type: "file", multiple: true, hidden: true, ...properties });
    field.addEventListener("change", () => upload([...field.files]));
    return field;
  };
  const files = input({ accept: "image/*,video/*", id: "own-files" });
  const folder = input({ webkitdirectory: true, id: "own-folder" });
  const over = (on) => (event) => {
    event.preventDefault();
    zone.toggleAttribute("data-over", on);
  };
  const drop = (event) => {
    event.preventDefault();
    event.stopPropagation();
    upload([...event.dataTransfer.files]);
  };
  const zone = el("div.drop", { ondragover: over(true), ondragleave: over(false), ondrop: drop },
    el("p", {}, "Drop images or clips here, or"),
    button("Choose files", () => files.click()),
    button("Choose a folder", () => folder.click()),
    files,
    folder,
  );
  const failure = el("div");
  const label = "A folder or ZIP archive on this machine";
  const example = "/home/me/photos or photos.zip";
  const place = el("input", { name: "place", required: true, placeholder: example, "aria-label": label });
  const openPlace = async (event) => {
    event.preventDefault();
    failure.replaceChildren();
    try {
      let progress = await api.openPlace(place.value.trim());
      for (; progress.stage === "opening"; progress = await api.progress(progress)) {
        showLine("looking for images", 0, 0, button("Stop", () => api.stopReading(progress).catch(() => {})));
        await pause();
      }
      use("", progress.collection);
    } catch (error) {
      showLine("");
      failure.replaceChildren(problem(error.message));
    }
  };
  const path = el("form.row", { onsubmit: openPlace }, place, el("button", { type: "submit" }, "Open"));
  const secret = "Uploads can be searched only in this tab, and are deleted after some time without use.";
  return el("section", {}, el("h3", {}, "My photos"), zone, local ? path : el("p.key", {}, secret), failure);
}

function models({ packs, offers, accepts, private: local }, current) {
  const action = ({ key, own_images: images }) => {
    if (key === current) {
      return el("span.row", {}, el("span", {}, "in use ✓"), button("Check", () => check(outcome)));
    }
    if (own) return button("Use", () => use(key, own));
    return images ? button("Use", () => use("", key)) : el("span", {}, "for your own images");
  };
  const row = (pack) => {
    const count = pack.methods.length;
    const facts = `${count} ${count === 1 ? "method" : "methods"} · ${pack.licence} · ${size(pack.bytes)}`;
    return el("li", {}, el("b", {}, pack.title), el("small", {}, facts), action(pack));
  };
  const outcome = el("div", { role: "status" });
  const offer = ({ name, title, about, facts }) =>
    el("li", {}, el("b", {}, title), el("small", {}, about), el("small", {}, facts), button("Get", () => look(outcome, name, "pack")));
  const kinds = KINDS.map(([value, title]) => el("option", { value }, title));
  const hint = () => (address.placeholder = KINDS[kind.selectedIndex][2]);
  const kind = select("Kind of address", kinds, KINDS[0][0], hint);
  const label = { "aria-label": "Hub address or folder", title: accepts };
  const address = el("input", { ...label, placeholder: KINDS[0][2], required: true });
  const ask = (event) => {
    event.preventDefault();
    look(outcome, address.value.trim(), kind.value);
  };
  const form = el("form.row", { onsubmit: ask }, kind, address, el("button", { type: "submit" }, "Look up"));
  const rows = [...packs.map(row), ...offers.filter(({ installed }) => !installed).map(offer)];
  const hub = local ? [el("p.key", {}, "From the Hugging Face Hub:"), form] : [];
  return el("section", {}, el("h3", {}, "Models"), el("ul.packs", {}, ...rows), ...hub, outcome);
}

/** Checks the preprocessing of the pack in use with captioned images. */
async function check(outcome) {
  outcome.replaceChildren(el("p", {}, "Trying other preprocessing steps on 50 captioned images. This takes up to a minute …"));
  outcome.scrollIntoView({ block: "center" });
  try {
    const { method, pairs, steps } = await api.checkPack(state());
    const wrongSteps = steps.filter((step) => !step.right);
    const row = ({ step, right, way, gain, error }) => {
      const other = error ? `${way} (${gain > 0 ? "+" : "−"}${Math.abs(gain).toFixed(2)} ± ${error.toFixed(2)})` : "no alternative differs";
      return el("li", {}, el("b", {}, `${right ? "✓" : "✗"} ${step}`), el("small", {}, `${right ? "next best" : "expected"}: ${other}`));
    };
    const sentence = wrongSteps.length
      ? `This pack's preprocessing differs from what its model expects: ${wrongSteps[0].step}. Fix this first: use ${wrongSteps[0].way}.`
      : "This pack preprocesses images and texts as its model expects.";
    const about = `${method}, ${pairs} captioned images. A number is the gain of matching pairs over other pairs if the step is changed, in standard deviations of the scores.`;
    outcome.replaceChildren(el("p", {}, sentence), el("ul.packs", {}, ...steps.map(row)), el("p.key", {}, about));
    outcome.scrollIntoView({ block: "start" });
  } catch (error) {
    outcome.replaceChildren(problem(error.message));
  }
}

/** Offers to use a pack on this machine, with the user's own images if these are in use. */
function offerPack(outcome, pack, sentence) {
  outcome.replaceChildren(el("p", {}, sentence), button("Use", () => use(pack, own), "button.main"));
}

/** Shows which files a download would fetch, with a button that starts it. */
async function look(outcome, address, kind) {
  outcome.replaceChildren(el("p", {}, "Contacting the Hub …"));
  try {
    const found = await api.lookPack(address, kind);
    if (found.pack) {
      offerPack(outcome, found.pack, "This pack is already on this machine. ");
      return;
    }
    const amount = found.missing_bytes ? size(found.missing_bytes) : "Nothing";
    const unknown = found.unknown_sizes ? `, and ${found.unknown_sizes} files of unknown size` : "";
    const part = ({ repository, commit, files, bytes, licence }) => {
      const terms = licence || "unknown (its model card states none)";
      return el("li", {}, `${repository}@${commit.slice(0, 8)}: ${files} files, ${size(bytes)}, licence ${terms}`);
    };
    outcome.replaceChildren(
      el("p", {}, `${amount} to download${unknown}.`),
      el("ul.key", {}, ...found.parts.map(part)),
      kind === "pack" ? "" : el("p.key", {}, "It is converted once, which takes some minutes and about 4 GB of memory."),
      button("Download", () => fetchPack(outcome, address, kind), "button.main"),
    );
  } catch (error) {
    outcome.replaceChildren(problem(error.message));
  }
}

async function fetchPack(outcome, address, kind) {
  try {
    let job = await api.fetchPack(address, kind);
    const bar = el("progress", { "aria-label": "Download" });
    const words = el("span");
    const stop = async (event) => {
      event.target.disabled = true;
      await api.cancelPack(job.job).catch((error) => toast(error.message));
    };
    outcome.replaceChildren(el("div.row", {}, bar, words, button("Cancel", stop)));
    while (job.state === "running" && outcome.isConnected) {
      if (job.total) [bar.max, bar.value] = [job.total, job.done];
      words.textContent = `${job.doing || "starting"}, ${Math.round(job.seconds)} s`;
      await pause();
      job = await api.packJob(job.job);
    }
    if (job.state === "ready") offerPack(outcome, job.pack, "The pack is ready. ");
    else if (job.state === "cancelled") outcome.replaceChildren(el("p", {}, "Cancelled; the downloaded files were deleted."));
    else if (job.state === "failed") outcome.replaceChildren(problem(job.error));
  } catch (error) {
    outcome.replaceChildren(problem(error.message));
  }
}

function machineFacts({ device, providers, image_encoder: { size: side, grid, bytes } }) {
  const facts = {
    Device: device,
    "ONNX providers": providers.join(", "),
    "Image encoder": `${side} × ${side} pixels to ${grid.join(" × ")} cells, ${size(bytes)}`,
  };
  const list = Object.entries(facts).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  return el("section", {}, el("h3", {}, "This machine"), el("dl", {}, ...list));
}

function leftOutFiles({ refused, refused_count: count, copies, copies_count: same }) {
  if (!count && !same) return null;
  const reasons = refused.map(({ file, reason }) => `${file}: ${reason}`);
  const files = [...reasons, ...copies.map((copy) => `${copy.file}: the same as ${copy.same_as}`)];
  const list = el("ul.key", {}, ...files.map((text) => el("li", {}, text)));
  return el("details.fold", {}, el("summary", {}, `${count + same} files are left out`), list);
}

/** Shows a sentence in the progress line, with a bar if there is a total; an empty sentence hides the line. */
function showLine(sentence, done = 0, total = 0, ...actions) {
  const box = /** @type {any} */ (document.getElementById("reading"));
  const bar = total > 0 && el("progress", { max: total, value: done, "aria-label": "Progress" });
  box.hidden = !sentence;
  box.replaceChildren(...[sentence && bar, sentence, ...actions].filter(Boolean));
}

let watched = "";

/**
 * Watches a collection until it is read, and calls `grown` when more images can be searched.
 * @param {import("./state.js").State} now
 * @param {import("./main.js").Context} context
 * @param {() => void} grown
 */
export async function watch(now, context, grown) {
  const place = `${now.pack} ${now.collection}`;
  const { curated, queries } = context.examples;
  examples = [...queries, ...curated.map(({ caption }) => caption)];
  if (watched === place) return;
  watched = place;
  const mine = isOwn(context.info.gallery.key);
  const act = (call) => async () => {
    await call(now).catch((error) => toast(error.message));
    watched = "";
    watch(now, context, grown);
  };
  let before = context.info.gallery.searchable;
  for (let first = true; ; first = false) {
    let found;
    try {
      found = await api.progress(now);
    } catch (error) {
      if (watched === place) showLine(error.status === 410 ? "" : error.message);
      return;
    }
    if (watched !== place) return;
    const { stage, done, total, searchable = 0, complete, progress } = found;
    if (complete || stage === "failed") {
      showOutcome(found, mine, now, context);
      if (!first || searchable !== before) {
        announce(progress);
        await grown();
      }
      return;
    }
    const stopped = stage === "stopped";
    const action = stopped ? button("Resume", act(api.resumeReading)) : mine && button("Stop", act(api.stopReading));
    showLine(`${progress || "opening"}${searchable ? `, ${searchable} can be searched` : ""}`, done, total, action);
    if (searchable && !before) await grown();
    before = searchable;
    if (stopped) return;
    await pause();
  }
}

/** Shows the outcome of reading a collection. */
function showOutcome({ stage, progress, refused_count: count, mismatch }, mine, now, context) {
  if (stage === "failed") {
    showLine(progress);
    return;
  }
  const left = mine && count > 0;
  const sentences = [left && `${count} ${count === 1 ? "file is" : "files are"} left out.`, mismatch?.sentence];
  const better = mismatch?.better;
  const change = better && button(`Use ${better}`, () => use(better, now.collection));
  showLine(sentences.filter(Boolean).join(" "), 0, 0, change, left && button("Show the files", () => open(context)));
}

/** The message for a collection that no longer exists. @param {string} sentence @returns {HTMLElement} */
export function goneMessage(sentence) {
  const choose = () => document.getElementById("collection")?.click();
  const actions = [button("Search the scenes", () => use("", ""), "button.main"), button("Choose images again", choose)];
  const title = el("h2", {}, "This collection is no longer available");
  return el("div.gone", { role: "alert" }, title, el("p", {}, sentence), el("div.row", {}, ...actions));
}
