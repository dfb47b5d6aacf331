// What a reader may change about the panels: every change notes the values of all knobs.
element.addEventListener("input", (event) => {
  const turned = event.target.closest("[data-knob]");
  if (!turned) return;
  const output = turned.parentElement.querySelector("output");
  if (output) output.textContent = turned.value;
  const settings = {};
  for (const knob of element.querySelectorAll("[data-knob]")) {
    if (knob.type === "range") settings[knob.dataset.knob] = Number(knob.value);
    else if (knob.checked) settings[knob.dataset.knob] = knob.value;
  }
  props.value = { ...props.value, settings };
  trigger("turn");
});

watch("value", () => {
  for (const knob of element.querySelectorAll("[data-knob]")) {
    knob.checked = knob.defaultChecked;
    knob.value = knob.getAttribute("value");
  }
});
