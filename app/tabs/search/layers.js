// The small maps: choosing one shows it large.
element.addEventListener("change", (event) => {
  if (event.target.name === "pv-layer") trigger("select", { index: 0, value: event.target.value });
});
