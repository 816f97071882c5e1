"""Chips as text and as plain data: the list, everything known about one, and problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from joymigrate.chips import Chip, NameAdvice, NameRelation, PackageAdvice
from joymigrate.chips.problems import ChipProblem
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import columns
from joymigrate.report.fields import fields

LIST_SCHEMA = "joymigrate.chips/1"
SHOW_SCHEMA = "joymigrate.chip-facts/1"
VALIDATE_SCHEMA = "joymigrate.chip-problems/1"

COLUMNS = ("name", "device", "backend", "package", "names", "title", "source")


def row(chip: Chip) -> dict[str, Any]:
    """One chip in the list."""
    listed = chip.name_list()
    return {
        **fields(chip, "name title device backend module package distribution aliases"),
        "role": "origin" if chip.origin else ("default target" if chip.default else "target"),
        **fields(chip, "keeps_device cpu_fallback"),
        "names": len(chip.names()) if listed else None,
        "versions": list(listed.versions) if listed else [],
        "skus": [sku.name for sku in chip.skus],
        "source": chip.source,
    }


def table(chips: Iterable[Chip]) -> str:
    """The list as text, one chip a line."""
    rows = [row(chip) for chip in chips]
    cells = [tuple(column.upper() for column in COLUMNS)]
    for item in rows:
        mark = {"origin": " (origin)", "default target": " (default)"}.get(item["role"], "")
        values = {**item, "name": item["name"] + mark, "package": item["package"] or "-"}
        values["names"] = "-" if item["names"] is None else item["names"]
        cells.append(tuple(str(values[column]) for column in COLUMNS))
    return "\n".join(columns(cells)) + "\n"


def facts(chip: Chip, relation: NameRelation, version: str | None) -> dict[str, Any]:
    """Everything known about one chip, section by section, as plain data."""
    listed = chip.name_list()
    origin = relation.origin
    known = chip.names(version)
    public = {n for n in origin.names() if not n.rpartition(".")[2].startswith("_")}
    return {
        "chip": {**row(chip), "folder": str(chip.folder), "notes": list(chip.notes)},
        "names": {
            "version": chip.version(version),
            "sources": dict(listed.versions) if listed else {},
            "count": len(known),
            "typed_tensors": sorted(chip.typed_tensors(version)),
            "of_origin": {"total": len(public), "same": len(public & known)} if listed else None,
            "capability": chip.api.get("capability"),
            "tensor": dict(chip.tensor),
            "list": sorted(known),
        },
        "renamed": [plain(item) for item in chip.renamed().values()],
        "absent": [plain(item) for item in chip.absent().values()],
        "moved": [plain(item) for item in chip.moved().values()],
        "environment": [plain(item) for item in chip.variables().values()],
        "tools": [plain(item) for item in chip.commands().values()],
        "launch": dict(chip.launch),
        "imports": [plain(item) for item in chip.imports().values()],
        "attributes": [plain(item) for item in chip.attributes().values()],
        "packages": [plain(item) for item in chip.packages().values()],
        "operators": [plain(item) for item in chip.operators().values()],
        "kernels": {k: v for k, v in chip.kernels.items() if k != "replacements"},
        "skus": [plain(sku) for sku in chip.skus],
        "versions": [dict(item) for item in chip.versions],
        "shim": dict(chip.shim),
    }


SECTIONS = (
    *("names", "renamed", "absent", "moved", "environment", "tools", "launch"),
    *("imports", "attributes", "packages", "operators", "kernels", "skus", "versions", "shim"),
)


def pick(data: Mapping[str, Any], sections: Sequence[str]) -> dict[str, Any]:
    """`data` with the chip and the sections asked for; all of them for none."""
    for name in sections:
        if name not in SECTIONS:
            raise JoyError(
                f"--section does not know '{name}'.{did_you_mean(name, SECTIONS)}",
                help=f"one of {', '.join(SECTIONS)}",
            )
    keep = ("chip", *(sections or SECTIONS))
    return {key: data[key] for key in keep}


def plain(item: NameAdvice | PackageAdvice | Any) -> dict[str, Any]:
    """A noun as plain data, without its empty fields."""
    values = dataclasses.asdict(item)
    for key, value in list(values.items()):
        if value in ("", (), None, False, {}) and key not in ("name", "to", "aarch64"):
            del values[key]
        elif hasattr(value, "value"):
            values[key] = value.value
    return values


def show(data: Mapping[str, Any]) -> str:
    """Everything known about one chip as text."""
    chip = data["chip"]
    lines = [
        f"{chip['name']}: {chip['title']}",
        f"  device {chip['device']}, module {chip['module']}, backend {chip['backend']}",
        f"  package {chip['package'] or '-'} (install {chip['distribution'] or '-'})",
        f"  aliases {', '.join(chip['aliases']) or '-'}; {chip['role']}; {chip['source']}",
        f"  folder {chip['folder']}",
    ]
    if chip["keeps_device"]:
        lines.append("  programs keep the old platform's device name")
    lines += [f"  note: {note}" for note in chip["notes"]]
    for key, value in data.items():
        if key == "chip" or not value:
            continue
        lines += ["", key.upper()]
        lines += names_lines(value) if key == "names" else section_lines(value)
    lines += ["", "Grade of every line: documented."]
    return "\n".join(lines) + "\n"


def names_lines(names: Mapping[str, Any]) -> list[str]:
    """What is known about names below the chip's module."""
    lines = []
    if names["version"]:
        lines.append(f"  {names['count']} names in version {names['version']}")
        share = names["of_origin"]
        lines.append(
            f"  {share['same']} of the old platform's {share['total']} public names are there"
        )
        lines.append(f"  typed tensors: {', '.join(names['typed_tensors']) or 'none'}")
    else:
        lines.append("  no name list: every name of the origin counts as present")
    lines += [f"  {canonical} is {own}" for canonical, own in names["tensor"].items()]
    if names["capability"]:
        lines.append("  get_device_capability returns " + one_line(names["capability"]["returns"]))
    lines += [f"  {version}: {source}" for version, source in names["sources"].items()]
    return lines


def section_lines(value: Any) -> list[str]:
    """One section: advice a line each, other data as keys."""
    if isinstance(value, list):
        return [f"  {item_line(item)}" for item in value]
    return [line for key, item in value.items() for line in key_lines(key, item)]


def key_lines(key: str, value: Any) -> list[str]:
    """One key of a free-form section."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [f"  {key}:", *(f"    {item_line(item)}" for item in value)]
    if isinstance(value, list):
        return [f"  {key}: {', '.join(map(str, value)) or '-'}"]
    if isinstance(value, dict):
        inner = "; ".join(f"{k} {one_line(v)}" for k, v in value.items())
        return [f"  {key}: {inner}"]
    return [f"  {key}: {one_line(value)}"]


def item_line(item: Mapping[str, Any]) -> str:
    """One item on one line: name → replacement [tier] note (source, date)."""
    head = str(item.get("name") or item.get("what") or item.get("torch", ""))
    if "tier" in item:
        target = "stays" if item.get("to") == item.get("name") else item.get("to") or "-"
        head = f"{head} → {target} [{item['tier']}]"
    skip = ("name", "what", "to", "tier", "note", "source", "date", "match", "torch")
    extra = [
        f"{'closed in' if k == 'until' else k} {flat(v)}"
        for k, v in item.items()
        if k not in skip and v not in (None, "")
    ]
    if "torch" in item:
        head = f"torch {item['torch']}"
    note = one_line(item.get("note") or "")
    origin = ", ".join(str(item[key]) for key in ("source", "date") if item.get(key))
    parts = [head, "; ".join(extra), note, f"({origin})" if origin else ""]
    return " · ".join(part for part in parts if part)


def flat(value: Any) -> str:
    """A nested value on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return one_line(value)


def one_line(value: Any) -> str:
    """Text without line breaks."""
    return " ".join(str(value).split())


def problems(results: Mapping[str, Sequence[ChipProblem]]) -> str:
    """Each problem on a line, then what was checked."""
    lines = [str(problem) for found in results.values() for problem in found]
    bad = sum(1 for found in results.values() if found)
    verdict = f"{count(len(lines), 'problem')} in {bad} of them." if bad else "valid."
    lines.append(f"Checked {count(len(results), 'chip')}: {verdict}")
    return "\n".join(lines) + "\n"


def count(number: int, noun: str) -> str:
    """`1 chip`, `2 chips`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
