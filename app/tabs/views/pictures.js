// Buttons that choose a picture.
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-picture]");
  if (!button) return;
  props.value = { ...props.value, image_id: Number(button.dataset.picture) };
  trigger("choose");
});
