"use strict";
// The frame of every page: data, theme, the menu's current entry, tables that sort.
const JM = { data: JSON.parse(document.getElementById("jm-data").textContent) };

JM.element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
};

(() => {
  const root = document.documentElement;
  const remembered = (() => { try { return localStorage.getItem("jm-theme"); } catch { return null; } })();
  const wanted = new URLSearchParams(location.search).get("theme") || remembered;
  if (wanted === "dark" || wanted === "light") root.dataset.theme = wanted;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("jm-theme", root.dataset.theme); } catch { /* a file:// page may not store */ }
  });
})();

(() => {
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const mark = () => {
    let current = null;
    for (const section of document.querySelectorAll("main > section")) {
      if (section.getBoundingClientRect().top < 120) current = section.id;
    }
    for (const [id, link] of links) {
      if (id === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; mark(); });
  }, { passive: true });
  mark();
})();

// Sorts the table of a head cell by its column.
JM.sort = (head, down) => {
  const body = head.closest("table").tBodies[0];
  const column = head.cellIndex;
  const key = (row) => {
    const cell = row.cells[column];
    const text = cell.dataset.key ?? cell.textContent.trim();
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text.toLowerCase();
  };
  const rows = [...body.rows].map((row) => [key(row), row]);
  rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? 1 : -1));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "ascending" : "descending");
  body.append(...rows.map(([, row]) => row));
};

document.addEventListener("click", (event) => {
  const head = event.target.closest("th");
  if (!head || !event.target.closest("th button")) return;
  const now = head.getAttribute("aria-sort");
  JM.sort(head, now === "descending" || (now === null && !head.classList.contains("right")));
});
