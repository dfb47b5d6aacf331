// The head of the panel: its button and the Escape key close it, and the focus goes back to the tile.
const close = () => {
  if (!element.querySelector(".pv-subject")) return;
  const tile = document.querySelector("#pv-grid .pv-tile[aria-current]");
  tile?.removeAttribute("aria-current");
  tile?.focus();
  trigger("shut", {});
};

element.addEventListener("click", (event) => {
  if (event.target.closest(".pv-close")) close();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || document.fullscreenElement) return;
  // Where something is typed or picked from a list, Escape has a meaning of its own.
  if (event.target.matches?.("textarea, select, input:not([type=radio])")) return;
  if (element.offsetParent !== null) close();
});
