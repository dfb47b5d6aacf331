// The page's address follows the tab's question. Each is an entry of the browser's history: Back,
// Forward, a reload or a link brings it again.
const OURS = ["q", "like", "more", "less", "method", "only", "image", "columns", "ranks"];
const { tab } = element.querySelector(".pv-link").dataset;
const made = () => element.querySelector(".pv-link").dataset;
let visiting = false; // what the address asks for is on its way

const here = () => new URLSearchParams(location.search);
const isOpen = () => (here().get("tab") ?? "search") === tab;
const asked = (of, without) => String(new URLSearchParams(
  [...of].filter(([name]) => OURS.includes(name) && name !== without)));

const write = (replace) => {
  const { link, key } = made();
  const address = new URL(location.href);
  for (const name of OURS) address.searchParams.delete(name);
  for (const [name, value] of new URLSearchParams(link)) address.searchParams.append(name, value);
  if (link) address.searchParams.set("tab", tab);
  const { pvFresh, ...state } = history.state ?? {};
  if (replace || pvFresh) history.replaceState({ ...state, pvKey: key }, "", address);
  else if (address.href !== location.href || state.pvKey !== key)
    history.pushState({ pvKey: key }, "", address);
};

watch("value", () => {
  visiting = false;
  const { visited } = made();
  if (!isOpen()) return;
  // Where the visitor went on meanwhile, a later answer brings what the address says now.
  if (visited === undefined) write(false);
  else if (String(new URLSearchParams(visited.split("#")[0])) === String(here())) write(true);
});

// The tab was opened, which made an entry without a question; see `note_tab`.
document.addEventListener("pv-tab", () => {
  if (isOpen() && !("waits" in made())) write(true);
});

addEventListener("popstate", ({ state }) => {
  if (!isOpen()) return;
  const shown = new URLSearchParams(made().link), key = state?.pvKey ?? "";
  // The same answer: of Search, another image may be open, or none.
  if (!visiting && made().key === key && asked(here(), "image") === asked(shown, "image")) {
    if (!document.dispatchEvent(new CustomEvent("pv-image", { cancelable: true, detail: tab }))) return;
    if (asked(here()) === asked(shown)) return;
  }
  visiting = true;
  choose(`${location.search}#${key}`);
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
