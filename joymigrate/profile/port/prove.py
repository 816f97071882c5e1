"""Whether a ported kernel computes what the original computes, in Triton's interpreter."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.port.draw import roles
from joymigrate.profile.port.edits import Edits
from joymigrate.profile.port.extract import extract
from joymigrate.profile.port.find import kernels, names_of
from joymigrate.profile.port.rewrite import replacements

CASES = 6
SECONDS = 600  # until the next answer; a case ends itself after a minute of work (interpret.py)


@dataclass(frozen=True, slots=True)
class PortProof:
    """How a comparison ended: `equal`, `different`, or `not run` with the reason.

    `ran` of the `statements` of the kernel and its helpers ran in the cases that were equal.
    """

    result: str
    cases: int = 0
    reason: str = ""
    ran: int = 0
    statements: int = 0
    front_end: str = ""  # what the chip's compiler says to the variant; "" where it was not asked
    front_end_original: str = ""  # and to the original


@dataclass(frozen=True, slots=True)
class ProofJob:
    """One kernel of a file, and the file's port."""

    path: Path
    original: bytes
    port: str
    kernel: str


def prove(
    jobs: list[ProofJob], roots: list[Path], known: dict[str, Any], *, cases: int = CASES,
    compiler: Path | None = None,
) -> list[PortProof]:  # fmt: skip
    """Run each pair on drawn arguments. `equal` needs a case in which something was written.

    Calls that the chip's rules replace are replaced in the original as well: the interpreter has
    no vendor's library. The rules themselves are held against torch by the tests. `compiler` is a
    folder with the chip's own Triton, whose front end is asked about both.
    """
    proofs: dict[int, PortProof] = {}
    with tempfile.TemporaryDirectory() as folder:
        written: list[dict[str, Any]] = []
        places: list[int] = []
        for index, job in enumerate(jobs):
            try:
                made = standing(job, roots, known, Path(folder) / str(index), cases)
            except JoyError as error:
                proofs[index] = PortProof("not run", reason=error.what)
                continue
            written.append(made)
            places.append(index)
        results = interpret(written, Path(folder) / "jobs.json", cases) if written else []
        for number, index in enumerate(places):
            own = results[number * cases : (number + 1) * cases]
            proofs[index] = judge_cases(own, written[number]["statements"])
            written[number]["case"] = next((one for one in own if "case" in one), None)
        if compiler is not None:
            said = lower_pairs(written, Path(folder) / "lower.json", known, compiler)
            for index, (original, port) in zip(places, said, strict=True):
                proofs[index] = replace(proofs[index], front_end=port, front_end_original=original)
    return [proofs[index] for index in range(len(jobs))]


def lower_pairs(
    written: list[dict[str, Any]], file: Path, known: dict[str, Any], compiler: Path
) -> list[tuple[str, str]]:
    """What the front end of the chip's compiler says to each original and its variant.

    With the arguments of a case that ran; without one it is not asked, and says nothing.
    """
    about = known.get("compiler")
    if about is None or not (compiler / "triton").is_dir():
        raise JoyError(
            "no compiler of the chip's Triton in this folder",
            where=str(compiler),
            help=f"unpack the wheel of {known['package']} into it (docs/how-to/port.md)",
        )
    asked = [one for one in written if one["case"] is not None]
    jobs = [
        {"file": one[which], "kernel": one["kernel"], "case": one["case"]["case"],
         "grid": one["case"]["grid"], "compiler": about}
        for one in asked for which in ("original", "port")
    ]  # fmt: skip
    file.write_text(json.dumps(jobs), encoding="utf-8")
    paths = [str(compiler), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths),
                   "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # fmt: skip
    ended = {"told": "the compiler ended the process"}
    said = [str(one["told"]) for one in answers("lower", file, len(jobs), environment, ended)]
    pairs = iter(zip(said[::2], said[1::2], strict=True))
    return [next(pairs) if one["case"] is not None else ("", "") for one in written]


def standing(
    job: ProofJob, roots: list[Path], known: dict[str, Any], folder: Path, cases: int
) -> dict[str, Any]:
    """A job with its two files, each of which imports by itself."""
    original = without_libraries(job.original, known)
    texts = [extract(job.path, given, job.kernel, roots)
             for given in (original, job.port.encode())]  # fmt: skip
    folder.mkdir()
    files = [folder / "original.py", folder / "port.py"]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    found = next(one for one in kernels(ast.parse(job.original)) if one.name == job.kernel)
    drawn = [asdict(one) for one in roles(found, ast.parse(texts[0]))]
    return {"original": str(files[0]), "port": str(files[1]), "kernel": job.kernel,
            "roles": drawn, "cases": cases, "statements": statements(texts[0])}  # fmt: skip


def statements(text: str) -> list[int]:
    """The lines of the statements inside functions, documentation left out."""
    found: set[int] = set()
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                words = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                if isinstance(node, ast.stmt) and node is not function and not words:
                    found.add(node.lineno)
    return sorted(found)


def interpret(jobs: list[dict[str, Any]], file: Path, cases: int) -> list[dict[str, Any]]:
    """The result of each case in Triton's interpreter."""
    file.write_text(json.dumps(jobs), encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1",
                   "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # fmt: skip
    ended = {"told": "failed: the process ended or took too long with these arguments", "ran": []}
    return answers("interpret", file, len(jobs) * cases, environment, ended)


def answers(
    module: str, file: Path, count: int, environment: dict[str, str], ended: dict[str, Any]
) -> list[dict[str, Any]]:
    """A line for each of `count` questions; `ended` for one that ends the process, or does not."""
    results: list[dict[str, Any]] = []
    while len(results) < count:
        command = [sys.executable, "-m", f"joymigrate.profile.port.{module}", str(file),
                   str(len(results))]  # fmt: skip
        lines, well = listen(command, environment)
        results += lines
        if not well and len(results) < count:
            results.append(ended)
        elif well and not lines:
            raise JoyError("the interpreter's process said nothing", where=" ".join(command))
    return results


def listen(command: list[str], environment: dict[str, str]) -> tuple[list[dict[str, Any]], bool]:
    """Lines of a process until it ends, or one takes too long; whether it ended well."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    timer = threading.Timer(SECONDS, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            lines.append(json.loads(line))
            timer.cancel()
            timer = threading.Timer(SECONDS, process.kill)
            timer.start()
        return lines, process.wait() == 0
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def judge_cases(results: list[dict[str, Any]], lines: list[int]) -> PortProof:
    """One answer out of all cases."""
    told = [str(one["told"]) for one in results]
    wrong = [one for one in told if one.startswith("different")]
    if wrong:
        return PortProof("different", len(results), wrong[0].partition(": ")[2])
    equal = told.count("equal")
    if equal:
        ran = {line for one in results for line in one["ran"]} & set(lines)
        return PortProof("equal", equal, ran=len(ran), statements=len(lines))
    reasons = [one.partition(": ")[2] for one in told if one.startswith("failed")]
    return PortProof(
        "not run", reason=reasons[0] if reasons else "no arguments let it write anything"
    )


def without_libraries(source: bytes, known: dict[str, Any]) -> bytes:
    """The original with the calls replaced that only a vendor's library computes."""
    tree = ast.parse(source)
    imports, _ = names_of(tree)
    edits = Edits(source)
    for kernel in kernels(tree):
        if kernel.language:
            list(replacements(kernel, edits, imports, known))
    return edits.within(0, len(source)).encode()
