// Earlier questions: one is asked again, or all are forgotten.
element.addEventListener("click", (event) => {
  const again = event.target.closest(".pv-again");
  if (again) trigger("select", { index: Number(again.dataset.place), value: null });
  if (event.target.closest(".pv-forget")) trigger("forget", {});
});
