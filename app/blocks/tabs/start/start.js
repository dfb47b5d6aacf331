// The choice to start with, and images of the visitor's own: a folder of this machine, or files.
const BATCH = 10, BYTES = 50e6; // of one upload
const LINKED = ["tab", "q", "like", "image"]; // an address with one of these has chosen already
const { dataset } = document.body;
const find = (name) => element.querySelector(name);
const say = (sentence) => { find(".pv-start-sent").textContent = sentence; };
const shut = () => { delete dataset.pvStart; };
const choose = (detail) =>
  document.dispatchEvent(new CustomEvent("pv-choose-images", { detail }));

// Called when the app has said something: nothing more to say means that the images are open.
let waiting = false;
window.pvStartSaid = () => {
  const open = document.querySelector("#pv-start-line .pv-line, #pv-start-line .pv-problem");
  if (open) waiting = true;
  else if (waiting) {
    waiting = false;
    say("");
    shut();
  }
};

const batches = (files) => {
  const found = [];
  let bytes = Infinity;
  for (const file of files) {
    const last = found.at(-1);
    if (!last || last.length === BATCH || bytes + file.size > BYTES) {
      found.push([file]);
      bytes = 0;
    } else last.push(file);
    bytes += file.size;
  }
  return found;
};

// Sends files a few at a time; those that came are searched, also where a later one is refused.
const send = async (files) => {
  const most = Number(find(".pv-start").dataset.most);
  const wanted = [...files].slice(0, most).filter((file) => file.size <= BYTES);
  const sent = [];
  let trouble = "";
  for (const batch of batches(wanted)) {
    say(`Sending ${sent.length} of ${wanted.length} files …`);
    const form = new FormData();
    for (const file of batch) form.append("files", file);
    try {
      const answer = await fetch("gradio_api/upload", { method: "POST", body: form });
      const paths = await answer.json();
      if (!answer.ok) throw new Error(paths.error);
      paths.forEach((path, i) => sent.push({ path, orig_name: batch[i].name }));
    } catch (error) {
      trouble = error.message || "the files could not be sent; try again";
      break;
    }
  }
  const missing = files.length - sent.length;
  say(trouble || (missing ? `${missing} files were too large or too many` : ""));
  if (sent.length) choose({ files: sent });
};

const input = find("input[type=file]");
input.addEventListener("change", () => {
  if (input.files.length) send(input.files);
});
const drop = find(".pv-drop");
for (const [name, over] of [["dragover", true], ["dragleave", false], ["drop", false]])
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("pv-over", over);
    if (name === "drop" && event.dataTransfer.files.length) send(event.dataTransfer.files);
  });
find("form")?.addEventListener("submit", (event) => {
  event.preventDefault();
  choose({ place: event.target.place.value });
});
find(".pv-start-close").addEventListener("click", shut);
find(".pv-start-scenes").addEventListener("click", () => {
  shut();
  document.querySelector("#pv-words :is(textarea, input)")?.focus();
});

document.addEventListener("click", (event) => {
  const name = event.target.closest?.("[data-shows]")?.dataset.shows;
  if (name === "pvStart") {
    if (dataset.pvStart === "mine") return shut();
    dataset.pvStart = "mine";
    (find("#pv-place") ?? input).focus();
  } else if (name) {
    if (name in dataset) delete dataset[name];
    else dataset[name] = "open";
  }
});

// Who asks something has chosen.
const asked = () => {
  dataset.pvAsked = "yes";
  if (dataset.pvStart === "choice") shut();
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.closest?.("#pv-words")) asked();
});
document.addEventListener("click", (event) => {
  if (event.target.closest?.("#pv-go, #pv-chips button")) asked();
});

const linked = LINKED.some((name) => new URLSearchParams(location.search).has(name));
if ("offered" in find(".pv-start").dataset && !linked) dataset.pvStart = "choice";
