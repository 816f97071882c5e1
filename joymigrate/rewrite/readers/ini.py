"""INI-like settings: setup.cfg, tox.ini, hostfiles, dotenv files, supervisor and systemd units."""

from __future__ import annotations

import re
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers._configuration import TreeWalk
from joymigrate.rewrite.readers._migration_map import Sites, worth_reading
from joymigrate.rewrite.readers._packages import RULE, package_advice
from joymigrate.rewrite.readers._tree import MappingEntry, scalar
from joymigrate.rewrite.source import SourceText

PATTERNS = (
    *("*.ini", "*.cfg", "*.conf", "*.env", ".env", ".env.*", "*.properties", "*.service"),
    *("hostfile", "hostfile.*", "*hostfile", "hosts.txt", "hostfile*"),
)
SECTION = re.compile(r"[ \t]*\[(?P<name>[^\]\r\n]*)\]")
OPTION = re.compile(
    r"(?P<key>[A-Za-z_][\w.-]*)[ \t]*(?:=|:(?![/\\]))[ \t]*(?P<value>[^\r\n]*?)[ \t]*$"
)
SLOTS = re.compile(r"[^\s#]+[ \t]+(?P<slots>slots=\d+)")
PACKAGES = ("install_requires", "setup_requires", "tests_require", "requires", "deps")


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """Findings of one file, line by line."""
    sites = Sites.of(source, context)
    name = source.path.rpartition("/")[2]
    host = "host" in name and not name.endswith((".cfg", ".ini", ".conf"))
    if not (host or name in ("setup.cfg", "tox.ini") or worth_reading(sites)):
        return
    walk = TreeWalk(sites, lambda entry, to: another(source, entry, to))
    section, packages = "", False
    for start, text in lines(source):
        if not text.strip() or text.lstrip()[0] in "#;":
            continue
        head = SECTION.match(text)
        if head:
            section, packages = head["name"], False
            packages = section.startswith("options.extras_require")
            continue
        if host:
            hosts(sites, start, text)
            continue
        packages = line(walk, start, text, section, packages)
    yield from sites.ordered()


def lines(source: SourceText) -> Iterator[tuple[int, str]]:
    """Every line with its place, without its ending."""
    starts = source.starts
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(source.text)
        yield start, source.text[start:end].rstrip("\r\n")


def line(walk: TreeWalk, start: int, text: str, section: str, packages: bool) -> bool:
    """One line; the result says whether the lines below, if indented, name packages."""
    indented = text[:1] in " \t"
    if packages and indented:
        requirement(walk.sites, start + len(text) - len(text.lstrip()), text.strip())
        return True
    begin = len(text) - len(text.lstrip())
    for word in ("export ", "Environment="):
        if text[begin:].startswith(word):
            begin += len(word) + (text[begin + len(word) : begin + len(word) + 1] == '"')
    match = OPTION.match(text, begin)
    if match is None:
        return packages and indented
    key = match["key"]
    if key in PACKAGES and section in ("options", "metadata", "testenv", ""):
        if match["value"]:
            requirement(walk.sites, start + match.start("value"), match["value"])
        return True
    option(walk, start, match)
    return section.startswith("options.extras_require")


def option(walk: TreeWalk, start: int, match: re.Match[str]) -> None:
    """`key = value`; a comment behind the value, and quotes around it, are left out."""
    text = walk.sites.source.text
    first, last = start + match.start("value"), start + match.end("value")
    value = re.sub(r"\s+[#;].*$", "", match["value"])
    last = first + len(value)
    inner = (first, last)
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        inner = (first + 1, last - 1)
    at = (start + match.start("key"), start + match.end("key"))
    key = scalar(text, *at, match["key"], at)
    found = scalar(text, first, last, text[inner[0] : inner[1]], inner)
    walk.entry(MappingEntry(key, found), set())


def requirement(sites: Sites, start: int, text: str) -> None:
    """One requirement of setup.cfg or tox.ini; what belongs beside it becomes a line of its own."""
    text = re.sub(r"\s+#.*$", "", text)
    change = package_advice(text, sites.context)
    if change is None:
        return
    source = sites.source
    also = [each for each in change.also if re.split(r"[=<>~! ]", each)[0] not in source.text]
    if change.after == text and not also:
        return
    line = source.text.rfind("\n", 0, start) + 1
    head = source.text[line:start]
    if change.after is None or (also and head.strip()):
        names = Text("; add {also}", also=", ".join(also)) if also else ""
        sites.add(RULE, start, start + len(text), reason=Text.of(change.reason) + names)
        return
    edits = [(start, start + len(text), change.after)] if change.after != text else []
    if also:
        end = line + len(source.line_text(source.position(start)[0]))
        edits.append((end, end, "".join(f"{source.newline}{head}{each}" for each in also)))
    sites.add(
        RULE,
        start,
        start + len(text),
        "\n".join([change.after, *also]),
        tier=change.tier,
        reason=change.reason,
        edits=edits,
    )


def hosts(sites: Sites, start: int, text: str) -> None:
    """`worker-1 slots=8` of a hostfile."""
    match = SLOTS.match(text)
    if match and sites.context.origin.device != sites.context.chip.device:
        reason = "slots are the cards of a node: nodes of the target may have another number"
        first, last = match.span("slots")
        sites.add("JM192", start + first, start + last, reason=reason)


def another(source: SourceText, entry: MappingEntry, name: str) -> tuple[int, str] | None:
    """One more line with the same value."""
    text = source.text
    begin = text.rfind("\n", 0, entry.key.start) + 1
    end = text.find("\n", entry.value.end)
    end = len(text) if end < 0 else end
    end = end - 1 if text[end - 1 : end] == "\r" else end
    head = text[begin : entry.key.start]
    return end, f"{source.newline}{head}{name}{text[entry.key.end : end]}"
