// The live page: takes the parts that changed and puts them in place, node by node, so that what a
// reader scrolled, opened, sorted or selected stays as it is.
(() => {
  const say = JM.data.words;
  const lang = JM.data.lang;
  const places = { menu: document.querySelector("nav > .links") };
  for (const section of document.querySelectorAll("main > section")) places[section.id] = section;
  const held = {}; // the markup that each place shows
  let changed = new Date();
  let ahead = 0; // the server's clock, in milliseconds before ours

  // Attributes that belong to the reader.
  const theirs = (node, name) =>
    (name === "open" && node.nodeName === "DETAILS") || name === "aria-sort"
    || name === "aria-current" || (name === "class" && node.classList.contains("fresh"));

  const attributes = (old, made) => {
    for (const { name } of [...old.attributes]) {
      if (!made.hasAttribute(name) && !theirs(old, name)) old.removeAttribute(name);
    }
    for (const { name, value } of made.attributes) {
      if (!theirs(old, name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
  };

  const key = (node) => node.dataset?.key ?? null;
  const same = (old, made) => old.nodeType === made.nodeType && old.nodeName === made.nodeName
    && key(old) === key(made);

  // Makes `old` equal to `made` with as few changes as its keys and its order allow.
  const become = (old, made) => {
    if (old.isEqualNode(made)) return;
    if (old.nodeType === Node.TEXT_NODE) { old.data = made.data; return; }
    if (old.nodeType !== Node.ELEMENT_NODE) return;
    attributes(old, made);
    if (old.dataset.since && old.dataset.since === made.dataset.since) return; // the clock's own
    const keyed = new Map([...old.children].filter((c) => key(c) !== null).map((c) => [key(c), c]));
    let next = old.firstChild;
    for (const child of [...made.childNodes]) {
      const name = child.nodeType === Node.ELEMENT_NODE ? key(child) : null;
      const known = name === null ? null : keyed.get(name);
      if (known && same(known, child)) {
        if (known === next) next = next.nextSibling; else old.insertBefore(known, next);
        become(known, child);
      } else if (name === null && next && same(next, child)) {
        const here = next;
        next = next.nextSibling;
        become(here, child);
      } else {
        old.insertBefore(child, next);
        if (name !== null && child.nodeName === "TR") child.classList.add("fresh");
      }
    }
    while (next) { const gone = next; next = next.nextSibling; gone.remove(); }
  };

  const put = (place, markup) => {
    const made = place.cloneNode(false);
    made.innerHTML = markup + (place.nodeName === "SECTION" ? "\n" : "");
    const top = anchor();
    become(place, made);
    for (const head of place.querySelectorAll("th[aria-sort]")) {
      JM.sort(head, head.getAttribute("aria-sort") === "ascending");
    }
    if (top) scrollBy(0, top.node.getBoundingClientRect().top - top.at);
  };

  // The first thing in view: it stays where it is when something above it grows.
  const anchor = () => {
    if (scrollY < 8) return null;
    for (const node of document.querySelectorAll("main h2, main tr, main details, main figure")) {
      const at = node.getBoundingClientRect().top;
      if (at >= 0) return { node, at };
    }
    return null;
  };

  const take = (state, how) => {
    ahead = new Date(state.now) - Date.now();
    const { title, ...parts } = state.parts;
    if (title !== undefined) document.title = title;
    for (const [id, markup] of Object.entries(parts)) {
      if (!places[id] || held[id] === markup) continue;
      held[id] = markup;
      put(places[id], markup);
      changed = new Date();
    }
    show(how);
    tick();
  };

  const line = JM.element("p", { id: "live", role: "status" });
  const other = JM.element("a", { href: `?lang=${lang === "zh" ? "en" : "zh"}` }, say.other);
  document.querySelector("header").append(line);
  const show = (how) => {
    line.className = how;
    const text = how === "gone" ? "" : `${say[how]} ${changed.toLocaleTimeString()}`;
    line.replaceChildren(JM.element("span", {}, JM.element("i"), text), other);
    document.getElementById("gone")?.remove();
    if (how !== "gone") return;
    const words = say.gone.replace("{time}", changed.toLocaleTimeString());
    document.body.append(JM.element("p", { id: "gone", role: "alert" }, words));
  };

  const tick = () => {
    for (const node of document.querySelectorAll("time[data-since]")) {
      const seconds = Math.max(0, Math.round((Date.now() + ahead - new Date(node.dataset.since)) / 1000));
      const text = seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
      if (node.textContent !== text) node.textContent = text;
    }
  };

  // Events where they come through; else (a proxy that holds them back, too many pages) ask.
  const ASK_MS = 2000;
  let version = 0;
  let asking = null;
  const ask = async () => {
    try {
      const answer = await fetch(`state.json?lang=${lang}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const state = await answer.json();
      if (state.version !== version) take(state, "polling");
      else show("polling");
      version = state.version;
    } catch { show("gone"); }
  };
  const poll = () => { if (asking === null) { asking = setInterval(ask, ASK_MS); ask(); } };
  const listen = () => {
    if (!window.EventSource || new URLSearchParams(location.search).has("poll")) { poll(); return; }
    const source = new EventSource(`events?lang=${lang}`);
    source.addEventListener("message", (event) => {
      clearInterval(asking);
      asking = null;
      const state = JSON.parse(event.data);
      version = state.version;
      take(state, "live");
    });
    // The browser tries again by itself, unless the answer was a refusal; then we ask.
    source.addEventListener("error", () => {
      show("gone");
      if (source.readyState === EventSource.CLOSED) { poll(); setTimeout(listen, 15 * ASK_MS); }
      else poll();
    });
  };
  setInterval(tick, 1000);
  show("live");
  listen();
})();
