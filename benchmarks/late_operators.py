"""Operators planted late into public programs: are all of them in the recording?

    python -m benchmarks.late_operators SOURCES -o ROWS.jsonl [PROGRAM …]

Programs are those of `benchmarks/board/programs.yaml`, from checkouts in SOURCES. Five operators
that the chip lacks are planted into the program's own text: at the head of its evaluation (else
behind its end, in a module that evaluates), after an exception, in a worker of a data loader, in an
export and in a thread. A program with a row is not run again. `own` are gaps of the program itself,
with a call site each; a gap that nobody calls would be false.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.board import journey
from benchmarks.board.programs import load

EVALUATION = re.compile(r"^(test|eval|evaluate|validate|validation|estimate_loss|generate|sample)$")
GAPS = ("cpu_fallback", "missing", "unknown")
INSIDE = "import torch; torch.special.i1e(torch.rand(3)); print('INSIDE', flush=True)"
BEHIND = """
import threading as _threading
import torch as _torch


class _Numbers(_torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return _torch.special.airy_ai(_torch.rand(3))


class _Evaluated(_torch.nn.Module):
    def forward(self, x):
        return _torch.special.i1e(x)


if __name__ == "__main__":
    try:
        raise ValueError
    except ValueError:
        _torch.special.bessel_j0(_torch.rand(3))
    for _ in _torch.utils.data.DataLoader(_Numbers(), batch_size=2, num_workers=1):
        pass
    {evaluated}
    print("INSIDE") if {behind} else None
    _thread = _threading.Thread(target=lambda: _torch.special.bessel_y1(_torch.rand(3)))
    _thread.start()
    _thread.join()
    _torch.jit.trace(lambda x: _torch.special.gammaincc(x, x), _torch.rand(3), check_trace=False)
    print("PLANTED")
"""
PLANTED = ("aten::special_i1e", "aten::special_bessel_j0", "aten::special_airy_ai",
           "aten::special_bessel_y1", "aten::igammac")  # fmt: skip


def plant(path: Path) -> str:
    """Put the five operators into a program; where the one of the evaluation went."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    head = next((node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
                 and EVALUATION.match(node.name) and node.name in calls(text)), None)  # fmt: skip
    if head is not None:
        first = head.body[0]
        lines.insert(first.lineno - 1, " " * first.col_offset + INSIDE)
    evaluated = "pass" if head is not None else "_Evaluated().eval()(_torch.rand(3))"
    behind = BEHIND.replace("{evaluated}", evaluated).replace("{behind}", str(head is None))
    path.write_text("\n".join(lines) + "\n" + behind, encoding="utf-8")
    return head.name if head is not None else "behind the end"


def calls(text: str) -> set[str]:
    """Names of functions that a program calls."""
    found = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {one.id if isinstance(one, ast.Name) else getattr(one, "attr", "") for one in found}


def main_file(command: str, folder: Path) -> Path:
    """The Python file that a command starts, behind a `cd` of its own."""
    words = shlex.split(command)
    if words[0] == "bash":
        words = shlex.split(words[-1].replace("&&", " "))
    at = words.index("cd") + 1 if "cd" in words else None
    inside = folder / words[at] if at is not None else folder
    return inside / next(word for word in words if word.endswith(".py"))


def row(program: Any, sources: Path, folder: Path) -> dict[str, Any]:
    """One program: what was planted and what the recording holds of it."""
    project = journey.lay(program, sources, folder)
    command = program.baseline or program.command
    where = plant(main_file(command, project))
    out = folder / "recording"
    out.mkdir()
    record = [sys.executable, "-m", "joymigrate", "profile", "record", "-q", "-o",
              str(out / "run.jsonl"), "--", *shlex.split(command)]  # fmt: skip
    environment = {**os.environ, **program.environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    paths = [str(project / one) for one in program.environment.get("PYTHONPATH", "").split(":")]
    environment["PYTHONPATH"] = os.pathsep.join([str(project), *paths, str(journey.ROOT)])
    done = subprocess.run(record, cwd=project, env=environment, capture_output=True, text=True,
                          timeout=540)  # fmt: skip
    found: dict[str, Any] = {"program": program.name, "evaluation": where}
    if "PLANTED" not in done.stdout:
        return {**found, "error": (done.stderr.strip().splitlines() or ["ended early"])[-1][:200]}
    files = sorted(map(str, out.glob("*.jsonl")))
    cover = [sys.executable, "-m", "joymigrate", "profile", "coverage", "-q", *files]
    said = subprocess.run([*cover, "--format", "json"], capture_output=True, text=True, check=True)
    gaps = {one["op"]: one for one in json.loads(said.stdout)["ops"] if one["status"] in GAPS}
    own = {name: one.get("where") for name, one in gaps.items() if name not in PLANTED}
    # A short run may never reach the function that it was planted into.
    planted = PLANTED if "INSIDE" in done.stdout else PLANTED[1:]
    return {**found, "seen": [name for name in planted if name in gaps],
            "missed": [name for name in planted if name not in gaps], "own": own}  # fmt: skip


def main() -> int:
    """Run what is asked for, and print the table of all rows; 1 where an operator was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sources", type=Path)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    lines = arguments.output.read_text().splitlines() if arguments.output.is_file() else []
    rows = [json.loads(line) for line in lines]
    known = {one.name: one for one in load()}
    for name in arguments.programs:
        if all(one["program"] != name for one in rows):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row(known[name], arguments.sources, Path(folder)))
            with arguments.output.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print("| program | evaluation | seen | missed | gaps of its own |\n|---|---|---|---|---|")
    for one in rows:
        if "error" in one:
            print(f"| {one['program']} | {one['evaluation']} | not run: {one['error']} | | |")
            continue
        own = ", ".join(f"{name} ({place})" for name, place in one["own"].items()) or "-"
        print(f"| {one['program']} | {one['evaluation']} | {len(one['seen'])} | "
              f"{', '.join(one['missed']) or '-'} | {own} |")  # fmt: skip
    ran = [one for one in rows if "error" not in one]
    seen = sum(len(one["seen"]) for one in ran)
    wanted = seen + sum(len(one["missed"]) for one in ran)
    print(f"\n{len(ran)} programs, {seen} of {wanted} planted operators seen")
    return int(seen < wanted)


if __name__ == "__main__":
    sys.exit(main())
