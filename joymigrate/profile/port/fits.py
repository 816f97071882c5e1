"""Whether kernels fit a core: what lives at once, in Triton's own IR, with arguments as launched.

A kernel that nothing in its source speaks against works only where this says so. Without Triton
on this machine nothing is compiled, and no kernel is said to work.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.port.draw import roles
from joymigrate.profile.port.extract import extract
from joymigrate.profile.port.find import Launch, SourceKernel
from joymigrate.profile.port.launches import configure_launches, numbers_of
from joymigrate.profile.port.notes import Note
from joymigrate.profile.port.prove import answers

MOST = 24  # launches and configurations of one kernel that are compiled
NO_TRITON = "Triton is not installed here, so the kernel was not compiled"
ENDED = {"told": "failed", "why": "the compiler ended the process"}


@dataclass(frozen=True, slots=True)
class KernelCandidate:
    """A kernel with the text and the path of its file."""

    kernel: SourceKernel
    source: bytes
    path: Path


def notes_of(
    asked: list[KernelCandidate], known: dict[str, Any], roots: list[Path]
) -> list[tuple[Note, ...]]:
    """What the compiled kernels say, in the order of the question."""
    if not asked:
        return []
    if importlib.util.find_spec("triton") is None:
        return [(Note("unknown", one.kernel.node.lineno, NO_TRITON),) for one in asked]
    found: list[list[Note]] = [[] for _ in asked]
    jobs: list[tuple[int, Launch | None, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for index, one in enumerate(asked):
            try:
                text = extract(one.path, one.source, one.kernel.name, roots)
            except JoyError as error:
                said = f"not compiled: {error.what}"
                found[index].append(Note("unknown", one.kernel.node.lineno, said))
                continue
            if (count := len([*configure_launches(one.kernel.launches)])) > MOST:
                said = f"{count} launches and configurations, of which {MOST} are compiled"
                found[index].append(Note("unknown", one.kernel.node.lineno, said))
            file = Path(folder) / f"k{index}.py"
            file.write_text(text, encoding="utf-8")
            for launch, job in cases(one, ast.parse(text)):
                memories = known["limits"]["memories"]
                limits = {name: row["value"] for name, row in memories.items()}
                about = {"file": str(file), "kernel": one.kernel.name, "limits": limits,
                         "libraries": known.get("libdevice", {}).get("modules", ())}  # fmt: skip
                jobs.append((index, launch, {**about, **job}))
        listed = Path(folder) / "jobs.json"
        listed.write_text(json.dumps([job for _, _, job in jobs]), encoding="utf-8")
        environment = {
            name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"
        }
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        told = answers("live", listed, len(jobs), environment, ENDED) if jobs else []
    for (index, launch, job), answer in zip(jobs, told, strict=True):
        found[index].append(note_of(asked[index].kernel, launch, job, answer, known))
    return [tuple(dict.fromkeys(notes)) for notes in found]


def cases(one: KernelCandidate, tree: ast.Module) -> Iterator[tuple[Launch | None, dict[str, Any]]]:
    """Each launch with what it says of the parameters, and the sizes that it leaves open."""
    found = roles(one.kernel, tree)
    fixed = [role.name for role in found if role.constexpr]
    open_ = [role.name for role in found if role.constexpr and role.kind in ("size", "number")]
    launches: list[Launch | None] = [*configure_launches(one.kernel.launches)]
    for launch in (launches or [None])[:MOST]:
        numbers = numbers_of(one.kernel.node, launch)
        yield (
            launch,
            {
                "roles": [asdict(role) for role in found],
                "sizes": {name: numbers[name] for name in fixed if name in numbers},
                "open": [name for name in open_ if name not in numbers],
            },
        )


def note_of(
    kernel: SourceKernel, launch: Launch | None, job: dict[str, Any], answer: dict[str, Any],
    known: dict[str, Any],
) -> Note:  # fmt: skip
    """One answer as a note: numbers where it fits, the reason where it does not."""
    line = launch.line if launch else kernel.node.lineno
    said = ", ".join(f"{name}={value}" for name, value in job["sizes"].items())
    at = f" ({said})" if said else ""
    memories = known["limits"]["memories"]
    if answer["told"] == "failed":
        return Note("unknown", line, f"Triton's front end does not take it{at}: {answer['why']}")
    if answer["told"] == "left":
        return Note("unknown", line, f"{answer['why']}{at}")
    if answer["told"] == "fits":
        most = "; ".join(
            f"{memories[name]['name']} {counted[-1] >> 10} of {memories[name]['value'] >> 10} KB"
            for name, counted in answer["bytes"].items() if counted[-1]
        )  # fmt: skip
        if "up_to" in answer:
            names = ", ".join(answer["open"])
            most += f"; up to {names} = {answer['up_to']}, which no launch in the file says"
        if answer["combinations"] > 1:
            most += f"; the most of {answer['combinations']} combinations of what no launch says"
        return Note("note", line, f"lives at once, with double buffers: {most or 'nothing'}{at}")
    worst = answer["why"][0]
    row = memories[worst["memory"]]
    names = ", ".join(worst["names"])
    words = f"{worst['bytes'] >> 10} KB live at once in {row['name']}, which has "
    words += f"{row['value'] >> 10} KB ({names}){at}"
    if answer["told"] == "over":
        help_ = "loop inside the kernel over smaller pieces"
        return Note("changes", line, words, help_, row["source"])
    only = f"{words}: it fits only where broadcasts, intermediates or second copies are no buffers"
    return Note("unknown", line, only, "try it on the chip, or with smaller tiles", row["source"])
