/**
 * The collection menu: what is searched, own images, packs from the Hub, and this machine. A line
 * below the query says how far the reading of a collection is.
 */

import * as api from "./api.js";
import { announce, el, toast } from "./dom.js";
import { go, isPrivate, state } from "./state.js";

const TOGETHER = 3; // files on their way at once
const LARGEST = 50e6; // bytes of an uploaded file
const MOST = 1000; // files of an upload
const EVERY = 1000; // milliseconds between questions about progress
const KINDS = [
  ["pack", "A pack", "owner/name"],
  ["clip", "CLIP, zero-shot", "openai/clip-vit-base-patch32"],
  ["vse_infty", "VSE∞, the authors' weights", "owner/name/folder"],
];
const dialog = () => /** @type {HTMLDialogElement} */ (document.getElementById("menu"));
const size = (bytes) => `${(bytes / 1e6).toLocaleString("en", { maximumFractionDigits: bytes < 1e7 ? 1 : 0 })} MB`;
const pause = () => new Promise((done) => setTimeout(done, EVERY));
const button = (text, onclick, kind = "button") => el(kind, { type: "button", onclick }, text);

/** Opens the menu. @param {import("./main.js").Context} context */
export async function open(context) {
  const box = dialog();
  const body = el("div.choices", {}, el("p", {}, "…"));
  const close = el("button.quiet.round", { type: "button", "aria-label": "Close", onclick: () => box.close() }, "×");
  box.replaceChildren(el("header", {}, el("h2", { id: "menu-title" }, "What is searched"), close), body);
  box.onclick = (event) => {
    if (event.target === box) box.close(); // returning false would cancel the click
  };
  if (!box.open) box.showModal();
  try {
    const [packs, known] = await Promise.all([api.packs(), api.collections()]);
    body.replaceChildren(
      ...[
        images(packs.packs, known.collections, context.info?.pack.name),
        own(packs),
        models(packs, context.info?.pack.name),
        context.info && machine(context.info),
        context.info && leftOut(context.info.gallery),
      ].filter(Boolean),
    );
  } catch (error) {
    body.replaceChildren(el("p.problem", { role: "alert" }, error.message));
  }
}

/** Takes files that were dropped, or chosen, as a collection of their own. @param {File[]} files */
export async function upload(files) {
  const fits = files.filter((file) => file.size && file.size <= LARGEST).slice(0, MOST);
  if (!fits.length) {
    toast("None of the files can be sent: choose images of at most 50 MB.");
    return;
  }
  if (fits.length < files.length) toast(`${files.length - fits.length} of ${files.length} files are left out: at most 1,000, of 50 MB each.`);
  if (dialog().open) dialog().close();
  let sent = 0;
  line(`sending files: 0 of ${fits.length}`, 0, fits.length);
  try {
    const { collection } = await api.newUpload();
    const queue = [...fits];
    const send = async () => {
      for (let file = queue.shift(); file; file = queue.shift()) {
        await api.addFile(collection, file.name, file);
        sent += 1;
        line(`sending files: ${sent} of ${fits.length}`, sent, fits.length);
      }
    };
    await Promise.all(Array.from({ length: TOGETHER }, send));
    const { pack } = await api.startUpload(collection);
    use(pack, collection);
  } catch (error) {
    line("");
    toast(error.message);
  }
}

/** Searches another collection; the query stays. */
function use(pack, collection) {
  if (dialog().open) dialog().close();
  go({ pack, collection, method: "", methods: [], image: null, view: null, words: null, like: null, more: [], less: [], filters: [], inspect: "" });
}

function images(packs, collections, inUse) {
  const now = state();
  const cards = collections.map(({ key, kind, title, pictures }) => {
    const pack = packs.find((each) => each.key === key);
    const chosen = now.collection ? now.collection === key : kind === "pack" && key === inUse;
    const about = pack ? `${pack.description.split(". ")[0].replace(/\.$/, "")}.` : "A folder of this machine.";
    const facts = [`${pictures.toLocaleString("en")} images`, pack?.licence, pack && size(pack.bytes)].filter(Boolean).join(" · ");
    const where = pack ? { pack: key, collection: "" } : { pack: "", collection: key };
    return el(
      "button.card",
      { type: "button", "aria-pressed": String(chosen), onclick: () => use(where.pack, where.collection) },
      el("img", { alt: "", loading: "lazy", src: api.imageUrl({ ...now, ...where }, 0), onerror: (event) => event.target.remove() }),
      el("span", {}, el("b", {}, title), el("span", {}, about), el("small", {}, facts)),
    );
  });
  return el("section", {}, el("div.cards", {}, ...cards));
}

function own({ private: near }) {
  const input = (properties) => {
    const field = el("input", { type: "file", multiple: true, hidden: true, ...properties });
    field.addEventListener("change", () => upload([...field.files]));
    return field;
  };
  const files = input({ accept: "image/*,video/*", id: "own-files" });
  const folder = input({ webkitdirectory: true, id: "own-folder" });
  const zone = el(
    "div.drop",
    {},
    el("p", {}, "Drop images or clips here, or"),
    button("Choose files", () => files.click()),
    button("Choose a folder", () => folder.click()),
    files,
    folder,
  );
  const over = (on) => (event) => {
    event.preventDefault();
    zone.toggleAttribute("data-over", on);
  };
  zone.addEventListener("dragover", over(true));
  zone.addEventListener("dragleave", over(false));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    upload([...event.dataTransfer.files]);
  });
  const problem = el("p.problem", { role: "alert", hidden: true });
  const place = el("input", { type: "text", name: "place", placeholder: "/home/me/photos or photos.zip", "aria-label": "A folder or ZIP archive of this machine", required: true });
  const path = el("form.row", {}, place, el("button", { type: "submit" }, "Open"));
  path.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.hidden = true;
    try {
      let found = await api.openPlace(place.value.trim());
      for (; found.stage === "opening"; found = await api.progress(found)) {
        line("looking for images", 0, 0, button("Stop", () => api.stopReading(found).catch(() => {})));
        await pause();
      }
      use(found.pack, found.collection);
    } catch (error) {
      line("");
      problem.textContent = error.message;
      problem.hidden = false;
    }
  });
  return el(
    "section",
    {},
    el("h3", {}, "My photos"),
    zone,
    near ? path : el("p.key", {}, "Only who has this tab can search them; they are deleted after some time unused."),
    problem,
  );
}

function models({ packs, offers, accepts, private: near }, inUse) {
  const now = state();
  const others = Boolean(now.collection) && !packs.some((pack) => pack.key === now.collection);
  const rows = packs.map((pack) => {
    const used = pack.key === inUse;
    const take = () => use(pack.key, pack.own_images ? "" : now.collection);
    const action = used ? el("span", {}, "in use ✓") : others || pack.own_images ? button("Use", () => (others ? use(pack.key, now.collection) : take())) : el("small", {}, "for your own images");
    return el("li", {}, el("b", {}, pack.title), el("small", {}, `${pack.methods.length} ${pack.methods.length === 1 ? "method" : "methods"} · ${pack.licence} · ${size(pack.bytes)}`), action);
  });
  const outcome = el("div", { role: "status" });
  const wanted = offers.filter((offer) => !offer.installed).map((offer) =>
    el("li", {}, el("b", {}, offer.title), el("small", {}, `${offer.about} ${offer.facts}.`), button("Get", () => look(outcome, offer.name, "pack"))),
  );
  const kind = el("select", { "aria-label": "What the address holds" }, ...KINDS.map(([value, title]) => el("option", { value }, title)));
  const address = el("input", { type: "text", "aria-label": "Hub address or folder", placeholder: KINDS[0][2], title: accepts, required: true });
  kind.addEventListener("change", () => (address.placeholder = KINDS[kind.selectedIndex][2]));
  const form = el("form.row", {}, kind, address, el("button", { type: "submit" }, "Look"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    look(outcome, address.value.trim(), kind.value);
  });
  return el(
    "section",
    {},
    el("h3", {}, "Models"),
    el("ul.packs", {}, ...rows, ...wanted),
    near && el("p.key", {}, "From the Hugging Face Hub:"),
    near && form,
    outcome,
  );
}

/** Says what an address would fetch; only a second press fetches it. */
async function look(outcome, address, kind) {
  outcome.replaceChildren(el("p", {}, "Asking the Hub …"));
  try {
    const found = await api.lookPack(address, kind);
    if (found.pack) {
      outcome.replaceChildren(el("p", {}, "It is on this machine already. "), button("Use", () => use(found.pack, isOwn() ? state().collection : "")));
      return;
    }
    const amount = found.missing_bytes ? size(found.missing_bytes) : "Nothing";
    outcome.replaceChildren(
      el("p", {}, `${amount} to download${found.unknown_sizes ? `, and ${found.unknown_sizes} files of unknown size` : ""}.`),
      el("ul.key", {}, ...found.parts.map((part) => el("li", {}, `${part.repository}@${part.commit.slice(0, 8)}: ${part.files} files, ${size(part.bytes)}, licence ${part.licence || "unknown: its card states none"}`))),
      kind !== "pack" && el("p.key", {}, "It is converted once, which takes minutes and about 4 GB of memory."),
      button("Download", () => fetchPack(outcome, address, kind), "button.main"),
    );
  } catch (error) {
    outcome.replaceChildren(el("p.problem", {}, error.message));
  }
}

async function fetchPack(outcome, address, kind) {
  try {
    let job = await api.fetchPack(address, kind);
    const bar = el("progress", { "aria-label": "Download" });
    const words = el("span");
    const cancel = button("Cancel", async () => {
      cancel.disabled = true;
      await api.cancelPack(job.job).catch((error) => toast(error.message));
    });
    outcome.replaceChildren(el("div.row", {}, bar, words, cancel));
    while (job.state === "running" && outcome.isConnected) {
      if (job.total) [bar.max, bar.value] = [job.total, job.done];
      words.textContent = `${job.doing || "starting"}, ${Math.round(job.seconds)} s`;
      await pause();
      job = await api.packJob(job.job);
    }
    if (job.state === "ready") outcome.replaceChildren(el("p", {}, "It is ready. "), button("Use", () => use(job.pack, isOwn() ? state().collection : ""), "button.main"));
    else if (job.state === "cancelled") outcome.replaceChildren(el("p", {}, "Cancelled; nothing was kept."));
    else if (job.state === "failed") outcome.replaceChildren(el("p.problem", {}, job.error));
  } catch (error) {
    outcome.replaceChildren(el("p.problem", {}, error.message));
  }
}

const isOwn = () => /^(upload|folder)-/.test(state().collection);

function machine({ device, providers, pack, image_encoder: encoder }) {
  const facts = {
    Device: device,
    "ONNX providers": providers.join(", "),
    Pack: `${pack.title}, ${pack.licence}, ${size(pack.bytes)}`,
    "Image encoder": `${encoder.size} × ${encoder.size} pixels to ${encoder.grid.join(" × ")} cells, ${size(encoder.bytes)}`,
    Credits: pack.credits,
    "From the Hub": pack.from && `${pack.from.repository}@${pack.from.commit.slice(0, 8)}`,
  };
  const rows = Object.entries(facts).filter(([, value]) => value);
  return el("section", {}, el("h3", {}, "This machine"), el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
}

function leftOut({ refused, refused_count: count, copies, copies_count: same }) {
  if (!count && !same) return null;
  const files = [...refused.map(({ file, reason }) => `${file}: ${reason}`), ...copies.map((copy) => `${copy.file}: the same as ${copy.same_as}`)];
  return el("details.fold", {}, el("summary", {}, `${count + same} files are left out`), el("ul.key", {}, ...files.map((text) => el("li", {}, text))));
}

/** The line of progress below the query; an empty sentence takes it away. */
function line(sentence, done = 0, total = 0, ...actions) {
  let box = document.getElementById("reading");
  if (!box) {
    box = el("div.reading", { id: "reading" });
    document.getElementById("notes")?.after(box);
  }
  box.hidden = !sentence;
  box.replaceChildren(
    ...(sentence ? [total > 0 && el("progress", { max: total, value: done, "aria-label": "Progress" }), el("span", {}, sentence), ...actions].filter(Boolean) : []),
  );
}

let watched = "";

/**
 * Watches a collection until it is read, and calls back when there is more to search.
 * @param {import("./state.js").State} now
 * @param {import("./main.js").Context} context
 * @param {() => void} grown
 */
export async function watch(now, context, grown) {
  const place = `${now.pack} ${now.collection}`;
  if (watched === place) return;
  watched = place;
  const current = () => watched === place;
  let before = context.info.gallery.searchable;
  let first = true;
  for (;;) {
    let found;
    try {
      found = await api.progress(now);
    } catch (error) {
      if (current()) line(error.status === 410 ? "" : error.message);
      return;
    }
    if (!current()) return;
    const { stage, done, total, searchable, complete, mismatch } = found;
    const act = (call) => async () => {
      await call(now).catch((error) => toast(error.message));
      watched = "";
      watch(now, context, grown);
    };
    const better = mismatch?.better && button(`Use ${mismatch.better}`, () => use(mismatch.better, now.collection));
    if (complete || stage === "failed") {
      const left = found.refused_count ? `${found.refused_count} files are left out. ` : "";
      const said = stage === "failed" ? found.progress : `${isOwn() ? left : ""}${mismatch?.sentence ?? ""}`;
      line(said, 0, 0, ...(better ? [better] : []), ...(left && isOwn() && stage !== "failed" ? [button("Which?", () => open(context))] : []));
      if (!first || searchable !== before) {
        announce(found.progress);
        await grown();
      }
      return;
    }
    const stopped = stage === "stopped";
    const mayStop = isPrivate(now.collection) || isOwn();
    const action = stopped ? button("Resume", act(api.resumeReading)) : button("Stop", act(api.stopReading));
    line(`${found.progress || "opening"}${searchable ? `, ${searchable} can be searched` : ""}`, done, total, ...(mayStop || stopped ? [action] : []));
    if (searchable && !before) await grown();
    before = searchable;
    first = false;
    if (stopped) return;
    await pause();
  }
}

/** What is said where a collection is gone. @param {string} sentence @returns {HTMLElement} */
export function gone(sentence) {
  return el(
    "div.gone",
    { role: "alert" },
    el("h2", {}, "This collection is gone"),
    el("p", {}, sentence),
    el("div.row", {}, button("Search the scenes", () => use("", ""), "button.main"), el("button", { type: "button", onclick: () => document.getElementById("collection")?.click() }, "Choose images again")),
  );
}
