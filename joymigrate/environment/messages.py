"""Reads what people paste about a machine: `pip list`, `env`, the card tool's table, a traceback.

Any mixture of these in any order, as a message or a log holds it. Each line is read by its form;
a line of none is prose and counts for nothing, and what no line tells stays "not looked at".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from joymigrate.chips import Chip
from joymigrate.chips.codes import find_codes
from joymigrate.environment import look
from joymigrate.environment.rules import DoctorRules, RecordPlaces, rules_of

PACKAGE = re.compile(  # pip freeze; a report's "torch version: 2.5.1"; pip list and conda list
    r"^(?:\[\w+\] )?(?P<name>[A-Za-z][\w.-]*(?: [A-Za-z][\w-]*)??)"
    r"(?:==(?P<frozen>[\w.+!-]+)(?:[\s;#].*)?"
    r"|(?i: version)?\s*[:=]\s*v?(?P<told>[\w.+!-]+)(?: \(.*\))?"
    r"|\s+(?P<listed>\d[\w.+!-]*)(?:\s+(?:/\S+|\S+\s+(?:pypi|conda-forge|defaults)))?)$"
)
SHOWN = re.compile(r"^Name: (\S+)\s*\nVersion: (\S+)", re.MULTILINE)  # pip show
VARIABLE = re.compile(  # env, declare, export, or before a command: a value ends as in a shell
    r"^(?:export |declare -x )?([A-Z][A-Z0-9_]*)="
    r"(?:\"([^\"]*)\"|'([^']*)'|[\"']?([^\s;&\"']*))(?:[\s;&\"'].*)?$"
)
PYTHON = re.compile(r"(?i)^(?:- *)?python(?: version)?:?\s+v?(3\.\d+(?:\.\d+)?)")
ARCH = re.compile(r"(?i)(?:^linux\b.*|^architecture:\s*|^platform\b.*|^)\b(aarch64|x86_64)\b")
DEVICE = re.compile(r"^c([rw-]{9})\S*\s+\d+\s+(\S+)\s+(\S+)\s.*\s(/dev/\S+)$")  # ls -l
USER = re.compile(r"^uid=\d+\((\S+?)\) .*groups=(\S+)")  # id
SHARED = re.compile(  # df -h: size, used, free, share
    r"^\S+\s+([\d.]+)([KMGT]?)i?\s+\S+\s+([\d.]+)([KMGT]?)i?\s+\d+%\s+/dev/shm$"
)
ABSENT = re.compile(r"(?m)^ls: (?:cannot access )?\W?(/dev/[\w/]+).*: No such file")
ASKED = re.compile(r"(?<![\w.-])([A-Za-z][\w.-]*)==(\d[\w.+!]*)")  # of pip
BYTES = {"": 10, "K": 10, "M": 20, "G": 30, "T": 40}  # df without a letter counts in KiB
LONGEST = 200  # characters of a line that is shown
CALLED = {"pytorch": "torch"}  # as torch's own report calls it
TRACE = "Traceback (most recent call last)"
FRAME = '  File "'
TOLD = (  # `- **driver version**: 24.1.rc2 (aarch64)`: a line of nothing else
    r"(?im)^[ >|*#•-]*(?:{})(?:[ _]?version)?[ *`:=|]*v?(\d+(?:[.-]\w+)+)[ *`|.]*(?:\(.*\))?$"
)
TIME = re.compile(r"\d+(?=[-:.,/T]\d)|(?<=\d[-:.,/T])\d+")
LISTED = (PACKAGE, VARIABLE, DEVICE)
ERROR = re.compile(
    r"(?:^|[\s\]:])(?:[A-Za-z_][\w.]*)?(?:Error|Exception)\b:|\bERR\d{5}\b|\bERROR\b|(?i:^error\b)"
    r"|(?i:\bfatal\b)|command not found"
)


def read_message(text: str, chip: Chip) -> dict[str, Any] | None:
    """What a text tells of a machine, in the form of `record()`; None where it tells nothing."""
    rules = rules_of(chip) or DoctorRules()
    lines = [line.strip() for line in text.splitlines()]
    places = rules.record
    shown = {name: re.search(f"(?m)^.*(?:{form}).*$", text) for name, form in rules.facts.items()}
    facts = {name: line[0].strip()[:LONGEST] for name, line in shown.items() if line}
    found = {
        "packages": read_packages(text, lines, places),
        "wanted": read_wanted(lines, places),
        "variables": read_variables(lines, places),
        "machine": read_machine(lines),
        **read_versions(lines, places),
        "memory": read_memory(lines),
        "facts": facts,
        "errors": list(read_errors(text, chip, rules, facts)),
    }
    told = {name: one for name, one in found.items() if one}
    devices, absent = read_devices(lines, places), ABSENT.findall(text)
    return told | ({"devices": devices, "absent": absent} if devices or absent else {}) or None


def read_packages(text: str, lines: Sequence[str], places: RecordPlaces) -> dict[str, str]:
    """The versions of the distributions that a record would hold, the first of each."""
    known = {str(canonicalize_name(name)): name for name in places.distributions}
    forms = [one for one in map(PACKAGE.match, lines) if one]
    pairs = [(one["name"], one["frozen"] or one["told"] or one["listed"]) for one in forms]
    found: dict[str, str] = {}
    for said, version in [*SHOWN.findall(text), *pairs]:
        plain = canonicalize_name(said.replace(" ", "-"))
        name = known.get(CALLED.get(plain, plain))
        if name is not None and is_version(version):
            found.setdefault(name, version)
    return found


def read_wanted(lines: Sequence[str], places: RecordPlaces) -> dict[str, str]:
    """What `pip install` was asked for, the first version of each distribution."""
    asked = [pair for line in lines if "pip install" in line for pair in ASKED.findall(line)]
    known = {str(canonicalize_name(name)): name for name in places.distributions}
    named = [(known.get(canonicalize_name(name)), version) for name, version in asked]
    return {name: version for name, version in reversed(named) if name}


def is_version(text: str) -> bool:
    """Whether a text is a version of a distribution, in full: `2.5.1+cpu`, not `2` alone."""
    try:
        return len(Version(text).release) > 1
    except InvalidVersion:
        return False


def read_variables(lines: Sequence[str], places: RecordPlaces) -> dict[str, str]:
    """The variables that a record would hold, the last of each."""
    pairs = [one.groups("") for one in map(VARIABLE.match, lines) if one]
    return {name: "".join(value) for name, *value in pairs if name in places.variables}


def read_machine(lines: Sequence[str]) -> dict[str, Any]:
    """Python, processor and user, as far as lines of their own tell them."""
    found: dict[str, Any] = {}
    for line in lines:
        if python := PYTHON.match(line):
            found.setdefault("python", python[1])
        elif user := USER.match(line):
            groups = re.findall(r"\d+\((\S+?)\)", user[2])
            found |= {"uid": read_number(user[1]), "gids": [*map(read_number, groups)]}
        elif arch := ARCH.match(line):
            found.setdefault("arch", arch[1].lower())
    return found


def read_versions(lines: Sequence[str], places: RecordPlaces) -> dict[str, Any]:
    """The cards and the versions below Python: driver, firmware, the SDK. What a tool or a path
    shows decides over a line that somebody may have written."""
    text = "\n".join(lines)
    smi = look.read_smi(text, places)
    version = {"driver": smi["version"]} if smi["version"] else {}
    told = [(part, TOLD.format(label)) for part, label in places.told.items()]
    for part, form in [*places.shown.items(), *told]:
        if found := re.search(form, text):
            version.setdefault(part, found[1])
    parts = {"version": version.get("driver"), "firmware": version.get("firmware")}
    return {
        "smi": {"exit_code": 0, "output": "", **smi} if smi["cards"] else {},
        "driver": {name: one for name, one in parts.items() if one},
        "sdk": {"version": version["sdk"]} if "sdk" in version else {},
    }


def read_devices(lines: Sequence[str], places: RecordPlaces) -> dict[str, Any]:
    """Device files of `ls -l`, by the names of owner and group."""
    stem = places.cards.partition("[")[0]
    return {
        path: {"mode": read_mode(mode), "uid": read_number(owner), "gid": read_number(group)}
        for mode, owner, group, path in (one.groups() for one in map(DEVICE.match, lines) if one)
        if path in places.shared or path.startswith(stem)
    }


def read_number(name: str) -> int | str:
    """A user or a group by its name, or by its number where that is told; root is 0."""
    return int(name) if name.isdigit() else 0 if name == "root" else name


def read_mode(mode: str) -> str:
    """`rw-rw----` as `0660`."""
    return f"{sum(1 << 8 - place for place, one in enumerate(mode) if one != '-'):04o}"


def read_memory(lines: Sequence[str]) -> dict[str, int]:
    """The size of shared memory and what of it is free, of a line of `df`."""
    line = next(filter(None, map(SHARED.match, lines)), None)
    if line is None:
        return {}
    size, free = (int(float(line[n]) * (1 << BYTES[line[n + 1]])) for n in (1, 3))
    return {"shm_bytes": size, "shm_free_bytes": free}


def read_errors(
    text: str, chip: Chip, rules: DoctorRules, facts: Mapping[str, str]
) -> Iterator[str]:
    """What tracebacks end with, and lines outside of them that have the form of an error or hold
    words that `doctor.yaml` knows; each once. Where there are none, lines with a known code."""
    ends, rest = split_tracebacks(text.splitlines())
    rest = [one for one in rest if not any(form.match(one) for form in LISTED)]
    told = [*ends, *(one for one in rest if ERROR.search(one) or rules.cause_of(one, facts))]
    if not told:
        told = [one for one in rest if any(find_codes(chip, one))]
    yield from dict.fromkeys(filter(None, told))


def split_tracebacks(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """How each traceback ends, up to an empty line, and the lines outside of all. What a log puts
    before each of its lines (a rank, a time) is cut off; a line with another prefix is outside."""
    ends: list[list[str]] = []
    outside: list[str] = []
    prefix, part = "", "outside"
    for line in lines:
        if TRACE in line:
            prefix, part = line[: line.index(TRACE)], "frames"
            ends.append([])
            continue
        if part == "frames" and FRAME in line:
            prefix = line[: line.index(FRAME)]  # the first line may have more before it
        said = cut_prefix(line, prefix)
        if part == "frames" and said and not said.startswith((" ", "\t")):
            part = "end"
        if part == "end" and not said:
            part = "outside"
        if said and part == "end":
            ends[-1].append(said.strip())
        elif said is None or (said and part == "outside"):
            outside.append(line.strip())
    return [" ".join(one) for one in ends], outside


def cut_prefix(line: str, prefix: str) -> str | None:
    """What a log's line says, None where something else stands before it; times may differ."""
    start = line.ljust(len(prefix))[: len(prefix)]
    return line[len(prefix) :].rstrip() if TIME.sub("0", start) == TIME.sub("0", prefix) else None
