"use strict";
// Shows below the merges what the page holds of the one that is clicked: the words of `isthmus why`.
(() => {
  const data = document.getElementById("merges-data"), place = document.getElementById("merge");
  if (!data) return;
  const merges = JSON.parse(data.textContent);
  const element = (name, text, ...children) => {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    made.append(...children);
    return made;
  };

  const table = (columns) => {
    const names = columns.map(([name]) => name), rows = columns[0][1].map((_, row) => columns.map(([, cells]) => cells[row]));
    const cells = (name, row) => element("tr", "", ...row.map((text) => element(name, text)));
    return element("table", "", element("thead", "", cells("th", names)), element("tbody", "", ...rows.map((row) => cells("td", row))));
  };
  const show = (key) => {
    const told = merges[key];
    place.hidden = false;
    if (!told) {
      place.replaceChildren(element("p", `isthmus why --fragment ${key.split("-")[0]} tells of it; this page has no room for all.`));
      return;
    }
    const rows = told.rows.flatMap(([word, text]) => [element("dt", word), element("dd", text)]);
    const parts = [element("h3", told.head), element("dl", "", ...rows)];
    if (told.table.length) parts.push(table(told.table));
    parts.push(...told.remarks.map((text) => element("p", text)), element("p", "", element("code", told.command)));
    place.replaceChildren(...parts);
  };

  let chosen = [];
  document.querySelectorAll("[data-merge]").forEach((cell) => cell.addEventListener("click", () => {
    chosen.forEach((each) => each.classList.remove("chosen"));
    chosen = [...document.querySelectorAll(`[data-merge="${cell.dataset.merge}"]`)];
    chosen.forEach((each) => each.classList.add("chosen"));
    show(cell.dataset.merge);
  }));
})();
