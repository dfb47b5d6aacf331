// The page's address follows the question, so that it can be kept, sent and opened again.
const OURS = ["q", "like", "method", "k", "only"];

watch("value", () => {
  const made = element.querySelector(".pv-link");
  if (!made) return;
  const address = new URL(location.href);
  const asked = new URLSearchParams(made.dataset.link);
  for (const name of OURS) {
    address.searchParams.delete(name);
    for (const value of asked.getAll(name)) address.searchParams.append(name, value);
  }
  // The page notes the tab when it is changed; until then it is this one.
  if (made.dataset.link && !address.searchParams.has("tab")) address.searchParams.set("tab", "search");
  history.replaceState(history.state, "", address);
});

const copied = async (words) => {
  try {
    await navigator.clipboard.writeText(words);
    return true;
  } catch {
    // Pages that are not served from this machine or over https have no clipboard of their own.
    const area = document.createElement("textarea");
    area.value = words;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
};

element.addEventListener("click", async (event) => {
  const button = event.target.closest(".pv-copy");
  if (!button) return;
  const said = (await copied(location.href)) ? "Link copied" : "Copy it from the address bar";
  button.textContent = said;
  element.querySelector("[role=status]").textContent = said;
  setTimeout(() => { button.textContent = "Copy link"; }, 2000);
});
