/**
 * The frame around the screens: header, query, keyboard, and which screen is shown.
 *
 * A screen is a module that exports `render(container, context)`, called once, which returns
 * `{update(state, before), close()}`. `update` is called after every change of the state; a screen
 * draws what the state says and changes it with `go`. Add a screen: its module, a line in
 * `SCREENS`, a link in index.html.
 *
 * @typedef {Object} Context
 * @property {any} info answer of `/info` for the state's pack and collection
 * @property {any} examples answer of `/examples`
 * @property {{image: string|null}} upload an image that is asked with, as a data URI
 */

import * as api from "./api.js";
import { el, toast } from "./dom.js";
import { go, isPrivate, link, state, subscribe } from "./state.js";

/** @type {Record<string, () => Promise<any>>} */
const SCREENS = {
  explore: () => import("./explore.js"),
  compare: () => import("./compare.js"),
  results: () => import("./results.js"),
};
const HISTORY = "polyview.queries";
const byId = (id) => /** @type {any} */ (document.getElementById(id));

/** @type {Context} */
const context = { info: null, examples: null, upload: { image: null } };
let shown = { name: "", screen: null };
let place = "";

/** Loads what belongs to a pack and a collection, where these have changed. */
async function load(now) {
  const wanted = `${now.pack} ${now.collection}`;
  if (wanted === place) return;
  const [info, examples] = await Promise.all([
    api.info(now),
    api.examples(now).catch(() => ({ curated: [], queries: [], algebra: "" })),
  ]);
  place = wanted;
  context.info = info;
  context.examples = examples;
  byId("method").replaceChildren(
    ...Object.entries(info.methods).map(([key, about]) => el("option", { value: key }, about.title)),
  );
  const title = /^(upload|folder)-/.test(now.collection) ? info.gallery.title : info.pack.title;
  byId("collection").textContent = `${title} · ${info.gallery.pictures.toLocaleString("en")} ▾`;
}

async function update(now, before) {
  if (now.gone) {
    await refuse(410, "The link leads to images that were uploaded in another browser. Such images are never shared.");
    return;
  }
  try {
    await load(now);
  } catch (error) {
    await refuse(error.status, error.message);
    return;
  }
  if (now !== state()) return; // a newer state is on its way
  if (document.activeElement !== byId("query") || now.q !== before?.q) byId("query").value = now.q;
  byId("method").value = methodOf(now);
  for (const anchor of document.querySelectorAll("[data-screen]")) {
    const name = /** @type {HTMLElement} */ (anchor).dataset.screen ?? "";
    anchor.setAttribute("href", link({ ...now, screen: name, inspect: "" }));
    anchor.toggleAttribute("aria-current", name === now.screen);
  }
  const name = now.screen in SCREENS ? now.screen : "explore";
  document.body.dataset.screen = name;
  if (shown.name !== name) {
    const module = await SCREENS[name]();
    if (now !== state()) return;
    shown.screen?.close();
    byId("screen").replaceChildren();
    shown = { name, screen: module.render(byId("screen"), context) };
  }
  shown.screen.update(now, before);
  const { watch } = await import("./collections.js");
  watch(now, context, redraw);
}

/** Shows why there is no screen, and what can be done. */
async function refuse(status, sentence) {
  shown.screen?.close();
  shown = { name: "", screen: null };
  place = "";
  const { gone } = await import("./collections.js");
  const message = status === 410 ? gone(sentence) : el("p.problem", { role: "alert" }, sentence);
  byId("screen").replaceChildren(message);
}

/** Draws the screen anew, with what a collection holds by now. */
async function redraw() {
  place = "";
  shown.screen?.close();
  shown = { name: "", screen: null };
  await update(state(), null);
}

/** The method that a state means: the named one, or the one whose evidence is best. */
export function methodOf(now) {
  const methods = Object.keys(context.info?.methods ?? {});
  if (now.method) return now.method;
  return methods.includes("vse_infty") ? "vse_infty" : methods[0] ?? "";
}

function ask() {
  const q = byId("query").value.trim();
  remember(q);
  go({ q, like: null, more: [], less: [], image: null, words: null, view: null, inspect: "" });
  byId("query").blur();
}

function remember(query) {
  if (!query || isPrivate(state().collection)) return;
  const queries = [query, ...history_().filter((other) => other !== query)].slice(0, 12);
  localStorage.setItem(HISTORY, JSON.stringify(queries));
  byId("history").replaceChildren(...queries.map((value) => el("option", { value })));
}

function history_() {
  try {
    return JSON.parse(localStorage.getItem(HISTORY) ?? "[]");
  } catch {
    return [];
  }
}

/** Asks with an image file. @param {File} file */
export function askWith(file) {
  const reader = new FileReader();
  reader.addEventListener("load", () => {
    context.upload.image = String(reader.result);
    go({ image: null, like: null, words: null, view: null, screen: "explore" });
    shown.screen?.update(state(), null);
  });
  reader.readAsDataURL(file);
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
byId("method").addEventListener("change", () =>
  go({ method: byId("method").value, words: null, view: null }),
);
byId("with-image").addEventListener("click", () => byId("image-file").click());
byId("image-file").addEventListener("change", () => {
  if (byId("image-file").files[0]) askWith(byId("image-file").files[0]);
  byId("image-file").value = "";
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
addEventListener("keydown", (event) => {
  const typing = /** @type {HTMLElement} */ (event.target).matches("input, select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    byId("query").focus();
    byId("query").select();
  } else if (event.key === "Escape" && !typing && !document.querySelector("dialog[open]")) {
    if (state().image !== null) go({ image: null, view: null });
  }
});
document.addEventListener("click", (event) => {
  const anchor = /** @type {HTMLElement} */ (event.target).closest("a[data-screen], a[data-go]");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const name = /** @type {HTMLElement} */ (anchor).dataset.screen;
  go({ screen: name ?? "explore", inspect: "" });
});

byId("history").replaceChildren(...history_().map((value) => el("option", { value })));
subscribe(update);
update(state(), null);
