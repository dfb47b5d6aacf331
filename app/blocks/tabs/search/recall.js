// The browser keeps the questions in words, so that later visits list them, too.
const KEY = "pv-questions";
document.addEventListener("click", ({ target }) => {
  if (target.closest(".pv-forget")) localStorage.removeItem(KEY);
});
watch("value", () => {
  if (props.value.length) localStorage.setItem(KEY, JSON.stringify(props.value));
});
try {
  props.value = JSON.parse(localStorage.getItem(KEY)) ?? [];
} catch {
  props.value = []; // no list of ours
}
if (props.value.length) trigger("recall", {});
