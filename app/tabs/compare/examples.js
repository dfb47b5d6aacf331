// Examples: a click on one asks it.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-words]");
  if (button) trigger("select", { index: 0, value: button.dataset.words });
});
