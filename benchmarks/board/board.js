"use strict";
// Filters of the board: rows carry "family|outcome" as their key; the cause is searched as text.
(() => {
  const rows = [...document.querySelectorAll("#programs tbody tr")];
  const pick = (id) => document.getElementById(id);
  const show = () => {
    const family = pick("family").value;
    const outcome = pick("outcome").value;
    const text = pick("cause").value.toLowerCase();
    let left = 0;
    for (const row of rows) {
      const [theirs, end] = row.dataset.key.split("|");
      const fits = (!family || theirs === family) && (!outcome || end === outcome)
        && row.textContent.toLowerCase().includes(text);
      row.hidden = !fits;
      left += fits;
    }
    pick("shown").textContent = `${left} of ${rows.length}`;
  };
  pick("filters").addEventListener("input", show);
  pick("filters").addEventListener("submit", (event) => event.preventDefault());
  show();
})();
