// Buttons that choose a picture.
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-picture]");
  if (!button) return;
  choose(Number(button.dataset.picture));
});
