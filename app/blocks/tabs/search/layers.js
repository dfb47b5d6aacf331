// The small maps: choosing one shows it large.
element.addEventListener("change", (event) => {
  if (event.target.name !== "pv-layer") return;
  choose(event.target.value);
});
