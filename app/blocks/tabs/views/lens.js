// The view lens: every change of a switch or a weight notes the weights of all views.
const views = () => [...element.querySelectorAll("[data-view]")];
const on = (view) => view.querySelector("[type=checkbox]");
const weight = (view) => view.querySelector("[type=range]");

const say = () => {
  for (const view of views()) {
    weight(view).disabled = !on(view).checked;
    view.querySelector("output").textContent = on(view).checked
      ? Number(weight(view).value).toFixed(2) : "off";
  }
};

const weigh = () => {
  say();
  const weights = views().map((view) => (on(view).checked ? Number(weight(view).value) : 0));
  props.value = { ...props.value, weights };
  trigger("weigh");
};

element.addEventListener("input", weigh);

element.addEventListener("click", (event) => {
  const only = event.target.closest("[data-only]")?.closest("[data-view]");
  if (!only && !event.target.closest("[data-all]")) return;
  for (const view of views()) {
    on(view).checked = !only || view === only;
    if (on(view).checked) weight(view).value = 1;
  }
  weigh();
});

// What was drawn anew begins anew: browsers keep what a visitor set.
watch("value", () => {
  for (const view of views()) {
    on(view).checked = true;
    weight(view).value = 1;
  }
  say();
});
