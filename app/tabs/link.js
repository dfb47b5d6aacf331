// The page's address follows the tab's question, so that it can be kept, sent and opened again.
const OURS = ["q", "like", "method", "k", "only", "image"];

// Writes the link into the address, unless another tab is open; the page notes which one is.
const note = () => {
  const made = element.querySelector(".pv-link");
  if (!made) return;
  const { tab, link } = made.dataset;
  const address = new URL(location.href);
  if ((address.searchParams.get("tab") ?? tab) !== tab) return;
  const asked = new URLSearchParams(link);
  for (const name of OURS) {
    address.searchParams.delete(name);
    for (const value of asked.getAll(name)) address.searchParams.append(name, value);
  }
  if (link) address.searchParams.set("tab", tab);
  history.replaceState(history.state, "", address);
};

watch("value", note);
document.addEventListener("pv-tab", () => {
  if (element.querySelector(".pv-link")?.dataset.link) note();
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
