"use strict";
// a click on a column's title sorts by it; everything else of the page works without
const value = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
};
const compare = (a, b) => (typeof a === "number" && typeof b === "number")
  ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
for (const table of document.querySelectorAll("table.sorted")) {
  const titles = [...table.tHead.rows[0].cells];
  titles.forEach((title, column) => title.addEventListener("click", () => {
    const down = title.getAttribute("aria-sort") === "ascending";
    titles.forEach((other) => other.removeAttribute("aria-sort"));
    title.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => (down ? -1 : 1) * compare(value(a, column), value(b, column)));
    table.tBodies[0].append(...rows);
  }));
}
