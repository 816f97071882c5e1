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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.port.draw import Role, branches, draw, roles
from joymigrate.profile.port.extract import ExtractedKernel, extract
from joymigrate.profile.port.find import Launch, SourceKernel
from joymigrate.profile.port.launches import configure_launches, defaults_of
from joymigrate.profile.port.notes import Note
from joymigrate.profile.port.prove import answers, statements
from joymigrate.profile.port.vocabulary import LanguageCall, judge_calls

MOST = 24  # launches and configurations of one kernel that are compiled
BRANCHES = 12  # sets of flags that one kernel is compiled with besides
NO_TRITON = "Triton is not installed here, so the kernel was not compiled"
ENDED = {"told": "failed", "why": "the compiler ended the process"}


@dataclass(frozen=True, slots=True)
class KernelCandidate:
    """A kernel with the text and the path of its file."""

    kernel: SourceKernel
    source: bytes
    path: Path


@dataclass(slots=True)
class CompileJob:
    """One compilation: of which launch, the question, and the answer."""

    launch: Launch | None
    question: dict[str, Any]
    answer: dict[str, Any] = field(default_factory=dict)


def notes_of(
    asked: list[KernelCandidate], known: dict[str, Any], roots: list[Path]
) -> list[tuple[list[Note], list[Note]]]:
    """What the compiled kernels say, in the order of the question: on what they call, on fit."""
    if importlib.util.find_spec("triton") is None:
        return [([], [Note("unknown", one.kernel.node.lineno, NO_TRITON)]) for one in asked]
    found: list[tuple[list[Note], list[Note]]] = []
    jobs: list[list[CompileJob]] = []
    texts: list[ExtractedKernel | None] = []
    limits = {name: row["value"] for name, row in known["limits"]["memories"].items()}
    with tempfile.TemporaryDirectory() as folder:
        for index, one in enumerate(asked):
            try:
                made = extract(one.path, one.source, one.kernel.name, roots)
            except JoyError as error:
                said = f"not compiled: {error.what}"
                found.append(([], [Note("unknown", one.kernel.node.lineno, said)]))
                texts.append(None)
                jobs.append([])
                continue
            found.append(([], []))
            texts.append(made)
            file = Path(folder) / f"k{index}.py"
            file.write_text(made.text, encoding="utf-8")
            about = {"file": str(file), "kernel": one.kernel.name, "limits": limits}
            jobs.append([CompileJob(launch, {**about, **case})
                         for launch, case in cases(one, ast.parse(made.text))])  # fmt: skip
        ask(jobs, Path(folder) / "jobs.json")
    for one, own, text, (called, fits) in zip(asked, jobs, texts, found, strict=True):
        if text is not None:
            called += dict.fromkeys(judge_calls(list(collect_calls(one, own, text)), known))
            line = one.kernel.node.lineno
            fits += [
                Note("note", line, said) for said in (*text.chosen, count_statements(own, text))
            ]
            fits += dict.fromkeys(note_of(one.kernel, job, known) for job in own)
    return found


def ask(jobs: list[list[CompileJob]], file: Path) -> None:
    """Put the questions to a process that compiles, and take the answers."""
    listed = [job for own in jobs for job in own]
    if not listed:
        return
    file.write_text(json.dumps([job.question for job in listed]), encoding="utf-8")
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    told = answers("live", file, len(listed), environment, ENDED)
    for job, answer in zip(listed, told, strict=True):
        job.answer = answer


def collect_calls(
    one: KernelCandidate, jobs: list[CompileJob], text: ExtractedKernel
) -> Iterator[LanguageCall]:  # fmt: skip
    """Every call of the language that was compiled, and with which flags alone."""
    flags: list[dict[str, Any]] = []
    seen: dict[str, tuple[dict[str, Any], set[int]]] = {}
    for job in jobs:
        base = len(flags)
        for case in (job.question["case"], *job.question["more"]):
            flags.append({name: case[name].get("value") for name in job.question["flags"]})
        for call in job.answer.get("calls", ()):
            at = {base + number for number in call.pop("cases")}
            seen.setdefault(repr(call), (call, set()))[1].update(at)

    def place(at: list[int] | None) -> tuple[Path, int]:
        line, column = at or (0, 0)
        return text.places.get((line, column), (one.path, one.kernel.node.lineno))

    for call, at in seen.values():
        path, line = place(call["place"])
        helper = f"{call['helper']}, {path.name}:{line}" if call["helper"] else ""
        yield LanguageCall(
            call["name"], place(call["from"])[1] if helper else line, call["given"],
            call["dtypes"], helper, find_flag(flags, at),
        )  # fmt: skip


def find_flag(flags: list[dict[str, Any]], at: set[int]) -> str:
    """The flag whose value tells some cases from the others; "" for all cases."""
    if len(at) == len(flags):
        return ""
    for name in flags[0]:
        inside = {repr(flags[number][name]) for number in at}
        others = {repr(case[name]) for number, case in enumerate(flags) if number not in at}
        if not inside & others:
            return f"{name}={' or '.join(sorted(inside))}"
    return "its flags choose so"


def count_statements(jobs: list[CompileJob], text: ExtractedKernel) -> str:
    """How much of a kernel and its helpers was compiled."""
    functions = [node for node in ast.parse(text.text).body
                 if isinstance(node, ast.FunctionDef) and node.decorator_list]  # fmt: skip
    lines = statements(ast.Module(list(functions), []))
    reached = {line for job in jobs for line in job.answer.get("lines", ())}.intersection(lines)
    sets = sum(1 + len(job.question["more"]) for job in jobs)
    words = f"{len(reached)} of {len(lines)} statements compiled"
    return f"{words}, with {sets} sets of arguments" if sets > 1 else words


def cases(one: KernelCandidate, tree: ast.Module) -> Iterator[tuple[Launch | None, dict[str, Any]]]:
    """Each launch with the arguments to compile it with, and the sizes that it leaves open."""
    found = roles(one.kernel, tree)
    choices = branches(found)
    launches: list[Launch | None] = [*configure_launches(one.kernel.launches)]
    for number, launch in enumerate((launches or [None])[:MOST]):
        numbers = defaults_of(one.kernel.node) | (launch.numbers if launch else {})
        case: dict[str, Any] = dict(draw(found, 0))
        sizes = {r.name: numbers[r.name] for r in found if r.constexpr and r.name in numbers}
        case |= {name: {"value": value} for name, value in sizes.items()}
        open_ = [r.name for r in found if is_open(r, numbers)]
        more = [] if number else [case | others for others in other_branches(choices)]
        yield (
            launch,
            {"case": case, "sizes": sizes, "open": open_, "more": more, "flags": [*choices]},
        )


def other_branches(choices: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Sets of flags: the first and the last value of all, then each value by itself."""
    if not choices:
        return []
    first = {name: values[0] for name, values in choices.items()}
    last = {name: values[-1] for name, values in choices.items()}
    found = [first, last]
    found += [first | {name: value} for name, values in choices.items() for value in values[1:]]
    return found[:BRANCHES]


def is_open(role: Role, numbers: dict[str, int]) -> bool:
    """Whether a role is a size that no launch says."""
    return role.constexpr and role.kind in ("size", "number") and role.name not in numbers


def note_of(kernel: SourceKernel, job: CompileJob, known: dict[str, Any]) -> Note:
    """One answer as a note: numbers where it fits, the reason where it does not."""
    answer = job.answer
    line = job.launch.line if job.launch else kernel.node.lineno
    said = ", ".join(f"{name}={value}" for name, value in job.question["sizes"].items())
    at = f" ({said})" if said else ""
    memories = known["limits"]["memories"]
    if answer["told"] == "failed":
        return Note("unknown", line, f"Triton's front end does not take it{at}: {answer['why']}")
    if answer["told"] == "fits":
        most = "; ".join(
            f"{memories[name]['name']} {counted[-1] >> 10} of {memories[name]['value'] >> 10} KB"
            for name, counted in answer["bytes"].items() if counted[-1]
        )  # fmt: skip
        if "up_to" in answer:
            names = ", ".join(job.question["open"])
            most += f"; up to {names} = {answer['up_to']}, which no launch in the file says"
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
