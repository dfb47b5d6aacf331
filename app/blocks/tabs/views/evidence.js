// The score of one picture and of each of its views: small maps of words, and the picture lit.
const FOR = [0, 114, 178]; // blue; AGAINST is orange (Okabe and Ito, 2008)
const WIDTH = 320; // pixels of a picture that is lit
let facts = null, pointed = null; // the place of the score or view that is pointed at

const stages = () => [...element.querySelectorAll(".pv-v-stage")];
const titleOf = (stage) => stage.closest("li").querySelector("strong").textContent;

const draw = () => {
  if (!facts) return;
  const place = chosen(), hit = facts.hits[pointed ?? 0], all = stages();
  all.forEach((stage, i) => {
    const { offsetWidth, offsetHeight } = stage, one = facts.hits[i];
    const height = Math.round(WIDTH * offsetHeight / Math.max(offsetWidth, 1)) || WIDTH;
    paint(stage.querySelector("canvas"), WIDTH, height, one, facts, place);
    stage.ariaLabel = `${titleOf(stage)}: ${facts.names[place]} ${signed(one.sums[place])}${mostly(one.where[place])}`;
    stage.closest("li").classList.toggle("pv-v-pointed", i === pointed);
  });
  const maps = words().map((word) => valuesOf(hit, facts.grid, Number(word.dataset.column)));
  const top = Math.max(...maps.map((map) => Math.max(...map.map(Math.abs))), 1e-9);
  const most = Math.max(...hit.sums.slice(1).map(Math.abs), 1e-9);
  words().forEach((word, i) => {
    const sum = hit.sums[word.dataset.column];
    const small = pixelsOf(maps[i], facts.grid, (value) =>
      [...(value < 0 ? AGAINST : FOR), 255 * Math.min(1, Math.abs(value) / top)]);
    const canvas = word.querySelector("canvas");
    [canvas.width, canvas.height] = [small.width, small.height];
    canvas.getContext("2d").drawImage(small, 0, 0);
    word.querySelector("small").textContent = `${sum < 0 ? "−" : "+"}${Math.abs(sum).toFixed(3)}`;
    tint(word, sum / most, `${signed(sum)} of ${hit.score.toFixed(3)}`);
  });
  const [low, high] = element.querySelectorAll(".pv-v-signed span");
  [low.textContent, high.textContent] = [`−${top.toFixed(3)}`, `+${top.toFixed(3)}`];
  const whose = pointed ? `${titleOf(all[pointed])}’s score` : "the score";
  const adds = facts.names[place] === "the words together" ? signed(hit.sums[place]).replace("s ", " ") : signed(hit.sums[place]);
  const rest = Math.abs(hit.rest) < 0.0005 ? "" : ` ${hit.rest.toFixed(3)} of it belongs to no part.`;
  element.querySelector(".pv-ev-said").textContent =
    `${capital(facts.names[place])} ${adds} of ${whose} ${hit.score.toFixed(3)}${mostly(hit.where[place])}.${rest}`;
};

listen(draw);
const point = (event) => {
  const stage = event.target.closest?.("li[data-hit]");
  const now = stage ? Number(stage.dataset.hit) : null;
  if (now === pointed) return;
  pointed = now;
  draw();
};
element.addEventListener("pointermove", (event) => event.pointerType === "mouse" && point(event));
element.addEventListener("pointerleave", point);
element.addEventListener("focusin", point);

watch("value", () => {
  const frame = element.querySelector(".pv-ev");
  facts = frame ? JSON.parse(frame.dataset.evidence) : null;
  pointed = null;
  letGo();
  draw();
});
new ResizeObserver(draw).observe(element);
