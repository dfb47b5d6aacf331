// Examples: a click on one asks it.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-words]");
  if (!button) return;
  choose(button.dataset.words);
});
