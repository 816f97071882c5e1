// The list of findings: filtered in memory, drawn when a file is opened, so that ten thousand are
// no burden. Fields of a finding, in this order:
const [RULE, TIER, AREA, CELL, LINE, COLUMN, END_LINE, END_COLUMN, MESSAGE, REASON, HUNKS, LINES] =
  [...Array(12).keys()];
const FILES_AT_ONCE = 150;
const FINDINGS_AT_ONCE = 100;

(() => {
  const { files, rules, areas, texts, words } = JM.data;
  const tiers = ["safe", "unsafe", "report"];
  const list = document.getElementById("files");
  const form = document.getElementById("filters");
  const output = document.getElementById("shown");
  if (!list) return;
  const make = JM.element;
  let matches = [];
  let drawn = 0;

  const haystacks = new Map();
  const haystack = (file, finding) => {
    if (!haystacks.has(finding)) {
      const rule = rules[finding[RULE]];
      const lines = finding[HUNKS].flatMap(([, before, after]) => [...before, ...after]);
      haystacks.set(finding, [file.path, rule.id, rule.name, texts[finding[MESSAGE]],
        texts[finding[REASON]] ?? "", ...lines, ...finding[LINES]].join("\n").toLowerCase());
    }
    return haystacks.get(finding);
  };

  const wanted = () => {
    const on = new Set([...form.querySelectorAll('[name="tier"]:checked')].map((box) => box.value));
    const area = form.querySelector("#area").value;
    const rule = form.querySelector("#rule").value;
    const words = form.querySelector("#text").value.toLowerCase().split(/\s+/).filter(Boolean);
    return (file, finding) => on.has(tiers[finding[TIER]])
      && (area === "" || areas[finding[AREA]].id === area)
      && (rule === "" || rules[finding[RULE]].id === rule)
      && words.every((word) => haystack(file, finding).includes(word));
  };

  const wordly = (letter) => letter !== undefined && /[\p{L}\p{N}_]/u.test(letter);

  // How many characters two lines share at their start and end, cut back to whole words.
  const common = (a, b) => {
    let head = 0;
    while (head < a.length && head < b.length && a[head] === b[head]) head++;
    let tail = 0;
    while (tail < a.length - head && tail < b.length - head
      && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
    while (head > 0 && wordly(a[head - 1]) && (wordly(a[head]) || wordly(b[head]))) head--;
    while (tail > 0 && wordly(a[a.length - tail])
      && (wordly(a[a.length - tail - 1]) || wordly(b[b.length - tail - 1]))) tail--;
    return [head, tail];
  };

  // The indentation that all lines share: it carries nothing in an excerpt.
  const margin = (lines) => {
    const filled = lines.filter((line) => line.some((letter) => letter.trim()));
    return filled.length
      ? Math.min(...filled.map((line) => line.findIndex((letter) => letter.trim()))) : 0;
  };

  const row = (kind, number, sign, line, from, to) => {
    const made = make("span", { class: `row ${kind}` },
      make("span", { class: "num" }, number), make("span", { class: "sign" }, sign));
    if (from < to) {
      made.append(line.slice(0, from).join(""), make("mark", {}, line.slice(from, to).join("")),
        line.slice(to).join(""));
    } else made.append(line.join(""));
    return made;
  };

  const difference = ([first, before, after]) => {
    const rows = [];
    const shift = margin([...before, ...after].map((line) => Array.from(line)));
    const old = before.map((line) => Array.from(line).slice(shift));
    const now = after.map((line) => Array.from(line).slice(shift));
    const pairs = old.length === now.length;
    for (const [lines, others, kind, sign] of [[old, now, "gone", "-"], [now, old, "come", "+"]]) {
      lines.forEach((line, index) => {
        const [head, tail] = pairs ? common(line, others[index]) : [0, 0];
        rows.push(row(kind, String(first + index), sign, line, pairs ? head : 0,
          pairs ? line.length - tail : 0));
      });
    }
    return rows;
  };

  const excerpt = (finding) => {
    const lines = finding[LINES].map((text) => Array.from(text));
    const shift = margin(lines);
    return lines.map((line, index) => {
      const number = finding[LINE] + index;
      const from = number === finding[LINE] ? finding[COLUMN] - 1 : line.findIndex((c) => c.trim());
      const to = number === finding[END_LINE] ? finding[END_COLUMN] - 1 : line.length;
      return row("site", String(number), "", line.slice(shift), Math.max(0, from - shift),
        to - shift);
    });
  };

  const spoken = (text) => text.split("`").map((part, index, all) =>
    index % 2 && all.length % 2 ? make("code", {}, part) : part);

  const entry = (finding) => {
    const rule = rules[finding[RULE]];
    const tier = tiers[finding[TIER]];
    const cell = finding[CELL] < 0 ? "" : `${words.cell} ${finding[CELL] + 1}:`;
    const head = make("div", { class: "head" },
      make("span", { class: `badge ${tier}` }, words[tier]),
      make("b", { title: rule.title }, rule.id),
      make("span", { class: "message" }, ...spoken(texts[finding[MESSAGE]])),
      make("span", { class: "where" }, `${cell}${finding[LINE]}:${finding[COLUMN]}`));
    const made = make("article", { class: "finding" }, head);
    if (texts[finding[REASON]]) {
      made.append(make("p", { class: "reason" }, ...spoken(texts[finding[REASON]])));
    }
    const rows = finding[HUNKS].length ? finding[HUNKS].flatMap(difference) : excerpt(finding);
    if (rows.length) made.append(make("pre", {}, ...rows));
    return made;
  };

  const more = (left, draw) => {
    const button = make("button", { type: "button", class: "more" }, `${words.more} (${left})`);
    button.addEventListener("click", () => { button.remove(); draw(); });
    return button;
  };

  const open = (folder, found, from = 0) => {
    const upto = Math.min(found.length, from + FINDINGS_AT_ONCE);
    const box = make("div", {});
    for (let index = from; index < upto; index++) box.append(entry(found[index]));
    if (upto < found.length) box.append(more(found.length - upto, () => open(folder, found, upto)));
    folder.append(...box.childNodes);
  };

  const folderOf = ({ file, found }) => {
    const badges = tiers.map((tier, index) => [tier, found.filter((one) => one[TIER] === index).length])
      .filter(([, number]) => number)
      .map(([tier, number]) => make("span", { class: `badge ${tier}` }, `${words[tier]} ${number}`));
    const made = make("details", { class: "file" },
      make("summary", {}, make("span", { class: "path" }, file.path), ...badges));
    made.addEventListener("toggle", () => {
      if (made.open && made.childElementCount === 1) open(made, found);
    });
    return made;
  };

  const draw = () => {
    const upto = Math.min(matches.length, drawn + FILES_AT_ONCE);
    const made = [];
    for (; drawn < upto; drawn++) made.push(folderOf(matches[drawn]));
    list.append(...made);
    if (drawn < matches.length) list.append(more(matches.length - drawn, draw));
  };

  const refresh = () => {
    const keep = wanted();
    matches = [];
    let number = 0;
    for (const file of files) {
      const found = file.findings.filter((finding) => keep(file, finding));
      if (found.length) matches.push({ file, found });
      number += found.length;
    }
    drawn = 0;
    list.replaceChildren();
    draw();
    if (!matches.length) list.append(make("p", { class: "empty" }, words.no_match));
    output.textContent = `${number.toLocaleString()} / ${JM.data.total.toLocaleString()} ${words.shown}`;
    const first = list.querySelectorAll(".file");
    const few = matches.length <= 3 ? matches.length : 1;
    for (let index = 0; index < few && index < first.length; index++) first[index].open = true;
  };

  let timer = 0;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(refresh, 120); });
  document.getElementById("expand").addEventListener("click", () => {
    for (const folder of list.querySelectorAll(".file")) folder.open = true;
  });
  document.getElementById("collapse").addEventListener("click", () => {
    for (const folder of list.querySelectorAll(".file")) folder.open = false;
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-rule], [data-text]");
    if (!link) return;
    form.reset();
    form.querySelector("#rule").value = link.dataset.rule ?? "";
    form.querySelector("#text").value = link.dataset.text ?? "";
    refresh();
  });
  refresh();
})();
