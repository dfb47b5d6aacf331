// Earlier questions: one is asked again, or all are forgotten.
element.addEventListener("click", (event) => {
  const again = event.target.closest(".pv-again");
  if (again) choose(again.dataset.name);
  if (event.target.closest(".pv-forget")) trigger("forget", {});
});
