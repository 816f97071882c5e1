"""Walks a journey's page: every figure must be a link to evidence that says the same."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from joymigrate.language import Language

VOID = {"meta", "br", "link", "input", "hr", "img", "use", "path", "line", "rect"}
# Where digits are no figures: commands, plots (their figures stand in tables), explanations,
# heads of columns, the page's own controls.
FREE_TAGS = {
    "pre",
    "code",
    "svg",
    "th",
    "summary",
    "nav",
    "h2",
    "h3",
    "figcaption",
    "script",
    "style",
}
FREE_CLASSES = {"note", "legend"}
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
UNITS = {
    "MiB": 2**-20,
    "GiB": 2**-30,
    "ms": 1e-3,
    "s": 1.0,
    "min": 1.0,
    "h": 1 / 60,
    "days": 1 / 480,
}
VERDICTS = {
    "pass": {"passed", "通过"},
    "fail": {"failed", "未通过"},
    "inconclusive": {"not decided", "未定", "passed or not decided", "通过或未定"},
}


@dataclass(slots=True)
class Link:
    """One link of the page."""

    href: str
    title: str
    text: str = ""


@dataclass(slots=True)
class Walked:
    """What a page shows: its links, and the figures that are no links."""

    links: list[Link] = field(default_factory=list)
    unlinked: list[str] = field(default_factory=list)


class Walker(HTMLParser):
    """Collects links and loose figures inside <main>."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Walked()
        self.stack: list[tuple[str, set[str]]] = []
        self.link: Link | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self.stack.append((tag, set(given.get("class", "").split())))
        if tag == "a" and self.inside("main"):
            assert self.link is None, f"a link inside a link: {given}"
            self.link = Link(given.get("href", ""), given.get("title", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        opened, _ = self.stack.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"
        if tag == "a" and self.link is not None:
            self.found.links.append(self.link)
            self.link = None

    def handle_data(self, data: str) -> None:
        if self.link is not None:
            self.link.text += data
        elif self.inside("main") and not self.free() and re.search(r"\d", data):
            self.found.unlinked.append(data.strip())

    def inside(self, tag: str) -> bool:
        return any(name == tag for name, _ in self.stack)

    def free(self) -> bool:
        return any(name in FREE_TAGS or classes & FREE_CLASSES for name, classes in self.stack)


def walk(page: Path) -> Walked:
    """Every link and every loose figure of a page on disk."""
    walker = Walker()
    walker.feed(page.read_text(encoding="utf-8"))
    assert not walker.stack, walker.stack
    return walker.found


def wrong(page: Path) -> list[str]:
    """What does not hold: loose figures, links to nothing, values that differ from the shown."""
    found = walk(page)
    problems = [f"not linked: {text!r}" for text in found.unlinked]
    for link in found.links:
        name, _, pointer = unquote(link.href).partition("#")
        if not name:
            continue
        target = page.parent / name
        if not target.is_file():
            problems.append(f"no such file: {link.href}")
        elif pointer:
            value = follow(target, pointer)
            if not shown(link.text, value) and link.text != in_chinese(value, target):
                problems.append(f"{link.text!r} at {link.href} is {value!r}")
            if not link.title.endswith(pointer):
                problems.append(f"the title of {link.href} names another place: {link.title}")
    return problems


def in_chinese(value: Any, path: Path) -> str | None:
    """A text as the Chinese page says it."""
    if not isinstance(value, str) or path.suffix != ".json":
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    return Language("zh", document.get("texts"))(value).replace("`", "")


def follow(path: Path, pointer: str) -> Any:
    """The value at a pointer in a file of JSON or JSON lines."""
    text = path.read_text(encoding="utf-8")
    lines = path.suffix == ".jsonl"
    value = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def shown(text: str, value: Any) -> bool:
    """Whether a text shows a value, up to the rounding that is seen."""
    if isinstance(value, str):
        whole = value.replace("`", "")
        cut = text.endswith("…") and whole.startswith(text[:-1])
        return cut or text in (value, whole) or text in VERDICTS.get(value, ())
    if isinstance(value, float) and not math.isfinite(value):
        return text == str(value)
    number = NUMBER.search(text)
    if number is None or value is None:
        return False
    return any(close(number[0], value * scale) for scale in scales(text[number.end() :].strip()))


def scales(unit: str) -> list[float]:
    """What a value may have been multiplied by, given the unit beside it."""
    if unit == "%":
        return [100.0, 1.0]
    if unit in ("分钟", "小时", "人日", "秒"):
        return [1.0, 1 / 60, 1 / 480, 60.0]
    return [UNITS.get(unit, 1.0), 60.0 if unit == "s" else 1.0]


def close(written: str, value: float) -> bool:
    """Whether a number is written as rounding it gives."""
    digits = written.replace(",", "")
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2])
    step = 10.0 ** (int(exponent or 0) - decimals)
    return abs(float(digits) - value) <= 0.5 * step * (1 + 1e-9) or f"{value:.3g}" == digits
