// A clip that is open. On its timeline a click, or the arrow keys and Enter, play it from a frame,
// and have the evidence beneath be of that frame. Where the frames are read as a set, the timeline is
// of what they add to the score, or to that of the word which is pointed at.
const TOP = 12, BOTTOM = 92; // of 100, as the server draws it
let cursor = 0; // the frame that the keys are at
let word = 0; // whose evidence the timeline shows; 0 for all words

const line = () => element.querySelector(".pv-time");
const video = () => element.querySelector("video");
const frames = () => JSON.parse(line().dataset.frames); // [id, seconds, score, still] of each
const isSet = () => "set" in line().dataset;
const values = () => {
  const each = word ? JSON.parse(line().dataset.words).map((words) => words[word - 1]) : [];
  return each.length && each[0] !== undefined ? each : frames().map(([, , score]) => score);
};

const at = (place) => {
  const [, seconds] = frames()[place], value = values()[place], best = Number(line().dataset.best);
  const adds = isSet() ? `${value < 0 ? "takes" : "adds"} ${Math.abs(value).toFixed(3)}` : `score ${value.toFixed(3)}`;
  const words = `${seconds.toFixed(1)} seconds, ${adds}${place === best ? ", the best" : ""}`;
  cursor = place;
  line().setAttribute("aria-valuenow", place);
  line().setAttribute("aria-valuetext", words);
  line().querySelector(".pv-time-here").style.left = `${100 * seconds / line().dataset.end}%`;
  element.querySelector(".pv-time-said").textContent = `At ${words}. Click, or press Enter, to ${video() ? "play from there" : "see it"}.`;
};

const tell = (place) => {
  if (isSet()) {
    element.querySelector(".pv-time-of").textContent = "Below: its frames in order of time.";
    return;
  }
  const best = place === Number(line().dataset.best);
  line().toggleAttribute("data-other", !best); // than the one that the tile's evidence is of
  element.querySelector(".pv-time-of").textContent =
    `Below: the ${best ? "best " : ""}frame, at ${frames()[place][1].toFixed(1)} s.`;
};

// A little later than the frame begins, as times are rounded.
const seek = (place) => {
  if (video()) video().currentTime = frames()[place][1] + 0.001;
};

const play = (place) => {
  const [id, , , still] = frames()[place];
  at(place);
  seek(place);
  if (still && !video()) show(still);
  video()?.play().catch(() => {}); // what cannot be played says so itself
  tell(place);
  choose(id);
};

const nearest = (event) => {
  const box = line().getBoundingClientRect();
  const seconds = (event.clientX - box.left) / box.width * line().dataset.end;
  const far = frames().map((frame) => Math.abs(frame[1] - seconds));
  return far.indexOf(Math.min(...far));
};

// An animation's frame, in the place of the clip.
const show = (still) => {
  const image = element.querySelector(".pv-clip > img"), button = element.querySelector(".pv-clip-play");
  image.dataset.still = still;
  if (button?.ariaPressed === "true") button.click();
  else image.src = still;
};

// The timeline of a set follows the word whose map is chosen.
const draw = () => {
  const all = values(), low = Math.min(...all), range = Math.max(...all) - low || 1, { end, best } = line().dataset;
  const points = frames().map(([, seconds], i) =>
    `${(100 * seconds / end).toFixed(2)},${(BOTTOM - (BOTTOM - TOP) * (all[i] - low) / range).toFixed(2)}`);
  const [first, last] = [points[0], points.at(-1)].map((point) => point.split(",")[0]);
  const dot = (point) => `M${point.replace(",", " ")}h0`;
  line().querySelector("polygon").setAttribute("points", `${first},100 ${points.join(" ")} ${last},100`);
  line().querySelector("polyline").setAttribute("points", points.join(" "));
  line().querySelector("path").setAttribute("d", points.map(dot).join(""));
  line().querySelector(".pv-time-top").setAttribute("d", dot(points[best]));
  element.querySelector(".pv-time-range").textContent = `${low.toFixed(3)} to ${(low + range).toFixed(3)}`;
};
document.addEventListener("change", ({ target }) => {
  const layer = target.closest?.("#pv-layers input")?.value.match(/^evidence:(\d+)$/);
  if (!layer || !line() || !isSet()) return;
  word = Number(layer[1]);
  draw();
  at(cursor);
});

element.addEventListener("click", ({ target }) => {
  const button = target.closest(".pv-clip-play");
  if (!button) return;
  const image = element.querySelector(".pv-clip > img"), plays = button.ariaPressed === "true";
  image.src = plays ? image.dataset.still : image.dataset.clip;
  button.ariaPressed = String(!plays);
  button.textContent = plays ? "▶ Play" : "■ Stop";
});
element.addEventListener("click", (event) => event.target.closest(".pv-time") && play(nearest(event)));

element.addEventListener("keydown", (event) => {
  if (!event.target.closest(".pv-time") || event.ctrlKey || event.metaKey || event.altKey) return;
  const last = frames().length - 1;
  const there = {
    ArrowRight: Math.min(cursor + 1, last), ArrowUp: Math.min(cursor + 1, last), Home: 0, End: last,
    ArrowLeft: Math.max(cursor - 1, 0), ArrowDown: Math.max(cursor - 1, 0),
  }[event.key];
  if (there === undefined && !["Enter", " "].includes(event.key)) return;
  event.preventDefault();
  if (there === undefined) return play(cursor);
  at(there);
  if (video()?.paused) seek(there);
});

// The still stays where a browser cannot play the clip, or plays nothing of it but its sound.
const giveUp = () => {
  const still = new Image(), sentence = element.querySelector(".pv-clip-off");
  still.src = video().poster;
  still.alt = video().ariaLabel;
  still.style.aspectRatio = video().style.aspectRatio;
  video().replaceWith(still);
  element.querySelector(".pv-time-now")?.remove();
  sentence.textContent = "This browser cannot play this clip; its best frame is shown. Open the file in a player, or save it as MP4 with H.264.";
  sentence.hidden = false;
  if (line()) at(cursor);
};
element.addEventListener("error", ({ target }) => target.matches("video") && giveUp(), true);
element.addEventListener("loadedmetadata", ({ target }) => target.videoWidth || giveUp(), true);
element.addEventListener("timeupdate", ({ target }) => {
  const now = element.querySelector(".pv-time-now");
  if (!now) return;
  now.hidden = false;
  now.style.left = `${Math.min(100, 100 * target.currentTime / line().dataset.end)}%`;
}, true);

const read = () => {
  word = 0;
  if (!line()) return;
  at(Number(line().dataset.best));
  tell(cursor);
};
watch("value", read);
read();
