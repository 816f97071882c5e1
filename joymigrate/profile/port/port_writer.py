"""Writes the ported variant of every Triton kernel below some paths, and proves each one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.profile.port.check import KernelCheck, check_source
from joymigrate.profile.port.notes import CHANGES, FAILS
from joymigrate.profile.port.operators import SUFFIXES
from joymigrate.profile.port.prove import PortProof, ProofJob, prove
from joymigrate.profile.port.rewrite import Port, port_source

NOT_ASKED = PortProof("not run", reason="not asked for")
DIFFERS = "its variant computes something else, or the chip's compiler refuses it"


@dataclass(frozen=True, slots=True)
class Ported:
    """One kernel: where its variant stands, what was changed or why not, and the proof."""

    path: str
    port: Port
    written: str = ""
    proof: PortProof = NOT_ASKED
    verdict: KernelCheck | None = None  # on the variant; None where there is none


def port_files(
    paths: Iterable[Path], known: dict[str, Any], folder: Path, *, proves: bool = True,
    compiler: Path | None = None,
) -> list[Ported]:  # fmt: skip
    """Write a file per source with kernels into `folder`; existing files are replaced.

    `compiler` is a folder with the chip's own Triton, whose front end is asked as well. A kernel
    is written as it was where its variant needs changes itself, differs from the original in the
    interpreter, or is refused by the front end that takes the original.
    """
    roots = list(paths)
    found: list[Ported] = []
    for root in roots:
        files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
        for file in (one for one in files if one.suffix not in SUFFIXES):
            place = file.relative_to(root) if root.is_dir() else Path(file.name)
            found += port_file(file, folder / place, roots, known, proves, compiler)
    return found


def port_file(
    file: Path, target: Path, roots: list[Path], known: dict[str, Any], proves: bool,
    compiler: Path | None = None,
) -> list[Ported]:  # fmt: skip
    """One source file."""
    source = file.read_bytes()
    if b"triton" not in source:
        return []
    try:
        text, ports = port_source(source, known)
        verdicts = judge_variants(file, text, ports, roots, known)
        proofs = prove_file(file, source, text, ports, roots, known, compiler) if proves else {}
        wrong = {
            name: DIFFERS for name, proof in proofs.items()
            if proof.result == "different"
            or (proof.front_end_original == "taken" and proof.front_end != "taken")
        }  # fmt: skip
        wrong |= {
            name: f"its variant {one.verdict}: {one.notes[0].message}"
            for name, one in verdicts.items() if one.verdict in (CHANGES, FAILS)
        }  # fmt: skip
        if wrong:
            text, ports = port_source(source, known, leave=wrong)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise JoyError(
            "not valid Python", where=f"{file}:{line}" if line else str(file),
            help="correct the file",
        ) from None  # fmt: skip
    if any(not one.refused for one in ports):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, text.encode())
        except OSError as error:
            raise JoyError(f"cannot write: {error.strerror}", where=str(target)) from None
    return [
        Ported(str(file), one, "" if one.refused else str(target),
               proofs.get(one.kernel, NOT_ASKED), verdicts.get(one.kernel))
        for one in ports
    ]  # fmt: skip


def judge_variants(
    file: Path, text: str, ports: list[Port], roots: list[Path], known: dict[str, Any]
) -> dict[str, KernelCheck]:
    """The verdict on each kernel that has a variant, held against the chip as an original is."""
    written = {one.kernel for one in ports if not one.refused}
    if not written:
        return {}
    folders = [root if root.is_dir() else root.parent for root in roots]
    found = check_source(text.encode(), str(file), known, folders)
    return {one.kernel: one for one in found if one.kernel in written}


def prove_file(
    file: Path, source: bytes, text: str, ports: list[Port], roots: list[Path],
    known: dict[str, Any], compiler: Path | None = None,
) -> dict[str, PortProof]:  # fmt: skip
    """The proof of each kernel that has a variant."""
    names = [one.kernel for one in ports if not one.refused]
    folders = [root if root.is_dir() else root.parent for root in roots]
    jobs = [ProofJob(file, source, text, name) for name in names]
    return (
        dict(zip(names, prove(jobs, folders, known, compiler=compiler), strict=True))
        if jobs
        else {}
    )
