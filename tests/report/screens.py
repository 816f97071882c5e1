"""Pages in a real browser: what is cut or sticks out at a width."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

NARROW = 500  # Chromium's window is never narrower; a frame is
NAMES = ("chromium", "chromium-browser", "google-chrome")
LAYOUT = """
const out = [];
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > width) out.push("the page scrolls sideways");
for (const text of document.querySelectorAll("svg.plot text")) {
  const inner = text.getBoundingClientRect();
  const outer = text.ownerSVGElement.getBoundingClientRect();
  if (inner.left < outer.left - 3 || inner.right > outer.right + 3)
    out.push("cut: " + text.textContent);
}
for (const one of document.querySelectorAll(".way small, .tile b, .tile span"))
  if (one.clientWidth && one.scrollWidth > one.clientWidth + 1)
    out.push("wide: " + one.textContent);
parent.document.body.dataset.problems = JSON.stringify(out);
"""


def browser(root: Path, *words: str) -> str:
    program = next(filter(None, map(shutil.which, NAMES)))
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
               f"--user-data-dir={root / 'profile'}", *words]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cut_parts(page: Path, width: int) -> Any:
    """What is cut, or makes the page scroll sideways, in a window so many pixels wide."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    text = text.replace("</body>", f"<script>{LAYOUT}</script></body>")
    if width < NARROW:
        text = f'<iframe width="{width}" height="900" srcdoc="{html.escape(text)}"></iframe>'
    framed = page.with_name("framed.html")
    framed.write_text(text)
    size = f"--window-size={max(width, NARROW)},900"
    dom = browser(page.parent, "--hide-scrollbars", size, "--dump-dom", framed.as_uri())
    found = re.search(r'data-problems="([^"]*)"', dom)
    assert found is not None, "the page did not run"
    return json.loads(html.unescape(found[1]))
