/**
 * The frame around the screens: header, query, keyboard, and the choice of the screen.
 *
 * A screen is a module that exports `render(container, context)`, called once, which returns
 * `{update(state, before), close?()}`. `update` is called after every change of the state; a screen
 * draws the state and changes it with `go`. A new screen needs a module, a line in `SCREENS` and a
 * link in index.html.
 *
 * @typedef {Object} Context
 * @property {any} info answer of `/info` for the state's pack and collection
 * @property {any} examples answer of `/examples`
 * @property {any} hit the selected hit of the screen; null for none
 */

import * as api from "./api.js";
import { button, closeMenus, el, icon, toast } from "./dom.js";
import { go, isOwn, isPrivate, link, state, storeImage, storedImage, subscribe } from "./state.js";

/** @type {Record<string, () => Promise<any>>} */
const SCREENS = {
  explore: () => import("./explore.js"),
  compare: () => import("./compare.js"),
  mistakes: () => import("./mistakes.js"),
  results: () => import("./results.js"),
};
const HISTORY = "polyview.queries";
const byId = (id) => /** @type {any} */ (document.getElementById(id));

/** @type {Context} */
const context = { info: null, examples: null, hit: null };
let current = { name: "", screen: null };
let loaded = ""; // the pack and collection that `context` describes
/** @type {any} */
let inspect = null;

/** Loads the description of a pack and a collection after they changed. */
async function load(now) {
  const source = `${now.pack} ${now.collection}`;
  if (source === loaded) return;
  const [info, examples] = await Promise.all([
    api.info(now),
    api.examples(now).catch(() => ({ curated: [], queries: [], algebra: "" })),
  ]);
  leave(); // the new screen stays hidden until its first answer
  loaded = source;
  context.info = info;
  context.examples = examples;
  byId("method").replaceChildren(
    ...Object.entries(info.methods).map(([key, about]) => el("option", { value: key }, about.title)),
  );
  const title = isOwn(info.gallery.key) ? info.gallery.title : info.pack.title;
  byId("collection").textContent = `${title} · ${info.gallery.pictures.toLocaleString("en")} ▾`;
}

async function update(now, before) {
  if (now.gone) {
    await refuse(410, "This link refers to images that were uploaded in another tab. Uploads are not shared.");
    return;
  }
  const name = now.screen in SCREENS ? now.screen : "explore";
  const loading = SCREENS[name]();
  document.body.dataset.screen = name;
  try {
    await load(now);
  } catch (error) {
    await refuse(error.status, error.message);
    return;
  }
  if (now !== state()) return; // a newer state exists
  const query = byId("query");
  const typing = document.activeElement === query && (before ? now.q === before.q : query.value);
  if (!typing) query.value = now.q;
  byId("method").value = methodOf(now);
  drawExample(now);
  for (const anchor of document.querySelectorAll("a[data-screen]")) {
    const screen = /** @type {HTMLElement} */ (anchor).dataset.screen ?? "";
    anchor.setAttribute("href", link({ ...now, screen, inspect: "" }));
    if (screen === now.screen) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  if (current.name !== name) {
    const module = await loading;
    if (now !== state()) return;
    current.screen?.close?.();
    for (const id of ["screen", "notes"]) byId(id).replaceChildren();
    current = { name, screen: module.render(byId("screen"), context) };
  }
  current.screen.update(now, before);
  if (now.inspect && now.image !== null && !inspect) {
    inspect = new (await import("./inspect.js")).Inspect(byId("inspect"), context);
  }
  inspect?.update(state());
  const { watch } = await import("./collections.js");
  watch(now, context, async () => {
    leave();
    await update(state(), null);
  });
}

/** Closes the screen, so that the next update draws a new one and loads everything again. */
function leave() {
  current.screen?.close?.();
  current = { name: "", screen: null };
  loaded = "";
}

/** Shows an error instead of a screen, with possible actions. */
async function refuse(status, sentence) {
  leave();
  const { goneMessage } = await import("./collections.js");
  const message = status === 410 ? goneMessage(sentence) : el("p.problem", { role: "alert" }, sentence);
  byId("screen").replaceChildren(message);
  byId("notes").replaceChildren();
}

/** Draws the query image in the query box. */
function drawExample(now) {
  const source = now.upload ? storedImage(now.upload) : now.like === null ? "" : api.imageUrl(now, now.like);
  const remove = () => go({ upload: "", like: null, image: null, words: null });
  const image = source ? el("img", { src: source, alt: "The query image" }) : "image";
  const parts = now.upload || now.like !== null ? [image, icon("Remove the image", "×", remove)] : [];
  byId("example").replaceChildren(...parts);
}

/**
 * The method of a state: the chosen method, or the one with the best retrieval, as in the API.
 * @param {import("./state.js").State} now
 */
export function methodOf(now) {
  const methods = Object.entries(context.info?.methods ?? {});
  if (now.method) return now.method;
  const quality = ([, about]) => about.metrics?.values.rsum ?? 0; // 0 if nothing was measured
  return methods.reduce((best, each) => (quality(each) > quality(best) ? each : best), methods[0])?.[0] ?? "";
}

function ask() {
  const q = byId("query").value.trim();
  remember(q);
  go({ q, more: [], less: [], image: null, words: null, view: null, inspect: "" });
  byId("query").blur();
}

/** Shows what the page does, its keys, and the source of the pack. */
function about() {
  const { pack } = context.info ?? {};
  const from = pack?.from ? ` From the Hub: ${pack.from.repository}@${pack.from.commit.slice(0, 8)}.` : "";
  const parts = [
    el("h2", { id: "about-title" }, "Polyview"),
    el("p", {}, "Search images with words or with an image. Each method describes an image by one or several views; ",
      "the page shows which part of an image a word matched, and where each view looked."),
    el("p", {}, "Sums: dog + beach - 0.5: people. Keys: / query · arrows images · Enter inspect · x select · Esc back."),
    pack && el("p.caption", {}, `${pack.title}: ${pack.description} Licence ${pack.licence}. ${pack.credits}.${from}`),
    el("p.caption", {}, "The page loads nothing from other machines."),
    button("Close", () => byId("about").close()),
  ];
  byId("about").replaceChildren(...parts.filter(Boolean));
  byId("about").showModal();
}

function remember(query) {
  if (!query || isPrivate(state().collection)) return;
  const queries = [query, ...pastQueries().filter((other) => other !== query)].slice(0, 12);
  localStorage.setItem(HISTORY, JSON.stringify(queries));
  byId("history").replaceChildren(...queries.map((value) => el("option", { value })));
}

function pastQueries() {
  try {
    return JSON.parse(localStorage.getItem(HISTORY) ?? "[]");
  } catch {
    return [];
  }
}

/** Searches with an image file. @param {File} file */
async function askWith(file) {
  try {
    const upload = await storeImage(file);
    go({ upload, like: null, q: "", more: [], less: [], image: null, words: null, view: null, screen: "explore" });
  } catch (error) {
    toast(error.message);
  }
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
byId("method").addEventListener("change", () =>
  go({ method: byId("method").value, by: "", words: null, view: null }),
);
byId("with-image").addEventListener("click", () => byId("image-file").click());
byId("image-file").addEventListener("change", ({ target }) => {
  if (target.files[0]) askWith(target.files[0]);
  target.value = "";
});
byId("collection").addEventListener("click", async () => {
  const { open } = await import("./collections.js");
  open(context);
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  const files = [...(event.dataTransfer?.files ?? [])];
  const [file] = files;
  if (files.length > 1) import("./collections.js").then(({ upload }) => upload(files));
  else if (file?.type.startsWith("image/")) askWith(file);
  else if (file) toast(`${file.name} is not an image.`);
});
document.addEventListener("click", (event) => closeMenus(event.target));
addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const typing = /** @type {HTMLElement} */ (event.target).matches("input, select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    if (!byId("query").checkVisibility()) go({ screen: "explore" });
    byId("query").focus();
    byId("query").select();
  } else if (event.key === "Escape") {
    if (closeMenus() || typing) return;
    if (state().view !== null) go({ view: null }, { replace: true });
    else if (state().image !== null) go({ image: null });
  }
});
document.addEventListener("click", (event) => {
  const anchor = /** @type {HTMLElement} */ (event.target).closest("a[data-screen]");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const name = /** @type {HTMLElement} */ (anchor).dataset.screen;
  go({ screen: name ?? "explore", inspect: "" });
  scrollTo({ top: 0 });
});

byId("help").addEventListener("click", about);
byId("history").replaceChildren(...pastQueries().map((value) => el("option", { value })));
subscribe(update);
update(state(), null);
