// The head of the panel: its button and the Escape key close it, and the focus goes back to the tile.
const close = () => {
  const tile = document.querySelector("#pv-grid .pv-tile[aria-current]");
  tile?.removeAttribute("aria-current");
  tile?.focus();
  trigger("shut", {});
};
const isOpen = () => element.querySelector(".pv-subject") !== null;
document.addEventListener("pv-close", () => isOpen() && close());

// Back to where no image was open, which then closes it; or out of a link that opened one.
const leave = () => {
  if (!isOpen()) return;
  const { pvDeep, ...state } = history.state ?? {};
  if (pvDeep) return history.go(-pvDeep);
  const address = new URL(location.href);
  address.searchParams.delete("image");
  history.replaceState(state, "", address);
  close();
};

const step = (by) => document.dispatchEvent(new CustomEvent("pv-step", { detail: by }));

element.addEventListener("click", (event) => {
  if (event.target.closest(".pv-close")) leave();
  const turn = event.target.closest(".pv-turn");
  if (turn) step(Number(turn.dataset.by));
});

element.addEventListener("click", async ({ target }) => {
  const button = target.closest(".pv-copy-path");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.path);
  button.textContent = "Path copied";
});

// The original as large as it is, over everything.
document.addEventListener("pv-original", ({ detail }) => {
  const dialog = document.createElement("dialog"), image = new Image(), close = document.createElement("button");
  Object.assign(image, { src: detail, alt: element.querySelector("h2")?.textContent ?? "" });
  Object.assign(close, { type: "button", textContent: "Close" });
  dialog.className = "pv-original";
  dialog.append(close, image);
  element.append(dialog);
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
});

// A swipe to the side goes to the next or previous image, one down closes the sheet.
const panel = document.querySelector("#pv-inspector"), SWIPE = 50; // pixels
let from = null;
panel.addEventListener("touchstart", ({ touches, target }) => {
  from = touches.length === 1 && !target.closest("input, textarea, video, [role=slider]") ? touches[0] : null;
}, { passive: true });
panel.addEventListener("touchend", ({ changedTouches: [to] }) => {
  if (!from) return;
  const x = to.clientX - from.clientX, y = to.clientY - from.clientY;
  if (Math.abs(x) > SWIPE && Math.abs(x) > 2 * Math.abs(y)) step(x < 0 ? 1 : -1);
  else if (y > SWIPE && y > 2 * Math.abs(x) && !panel.scrollTop && getComputedStyle(panel).position === "fixed") leave();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || document.fullscreenElement || document.querySelector("dialog[open]")) return;
  // Where something is typed or picked from a list, Escape has a meaning of its own.
  if (event.target.matches?.("textarea, select, input:not([type=radio])")) return;
  if (element.offsetParent !== null) leave();
});
