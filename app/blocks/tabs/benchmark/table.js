// Sorts the results: a click on a column's title puts the best first, another one turns it round.
// What was not measured stays last. The order is kept when the table is shown anew.
let chosen = null; // {column, direction}

let group = "0"; // of columns, where there is no room for all

function show() {
  const table = element.querySelector(".pv-bench-scroll");
  if (!table) return;
  table.dataset.shown = group;
  for (const button of element.querySelectorAll("[data-group]"))
    button.setAttribute("aria-pressed", String(button.dataset.group === group));
}

function sort() {
  const table = element.querySelector("table.pv-bench");
  if (!table || !chosen) return;
  const sign = chosen.direction === "ascending" ? 1 : -1;
  const value = (row) => row.children[chosen.column]?.dataset.value ?? "";
  const order = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return sign * (chosen.column ? Number(a) - Number(b) : a.localeCompare(b));
  };
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => order(value(a), value(b)));
  table.tBodies[0].append(...rows);
  table.querySelectorAll("button[data-column]").forEach((button) => {
    const own = Number(button.dataset.column) === chosen.column;
    button.parentElement.setAttribute("aria-sort", own ? chosen.direction : "none");
  });
}

element.addEventListener("click", (event) => {
  group = event.target.closest("[data-group]")?.dataset.group ?? group;
  show();
  const button = event.target.closest("button[data-column]");
  if (!button) return;
  const column = Number(button.dataset.column);
  const other = { ascending: "descending", descending: "ascending" };
  const again = chosen && chosen.column === column;
  chosen = { column, direction: again ? other[chosen.direction] : button.dataset.first };
  sort();
});
watch("value", () => {
  show();
  sort();
});
