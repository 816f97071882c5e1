"""Compiled packages off the request path: found or made, compared with eager, then swapped in.

A package lies in a folder named after everything that it depends on: the program with its weights,
torch, the machine. Another torch, weights or machine is another folder: nothing stale is loaded.
What compiles is a process of low priority; whatever becomes of it, eager answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate import files
from joymigrate.run.serve.ranking import runner
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.program import WHOLE_FILE, RankingProgram, first_line, share
from joymigrate.run.serve.ranking.tensors import as_arrays
from joymigrate.run.serve.ranking.trial import SHAPES, TRIED, draw_if_possible

log = logging.getLogger("joymigrate.serve")
FACTS = "facts.json"
FILES = "files"  # in the facts: SHA-256 of every other file of the folder
TRIES = 3
WAIT_SECONDS = 1.0
# Of the largest score: fused kernels add in another order (facts: 6e-8 in float32).
TOLERANCE = {"float32": 1e-5, "float64": 1e-10, "float16": 5e-3, "bfloat16": 2e-2}
STATES = ("off", "compiling", "comparing", "ready", "failed", "refused")


def cache_folder() -> Path:
    """Where packages are kept: JOYMIGRATE_CACHE, else the user's cache folder."""
    named = os.environ.get("JOYMIGRATE_CACHE")
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return (base if named else base / "joymigrate") / "ranking"


def facts_of(program: RankingProgram) -> dict[str, str]:
    """Everything that a package depends on."""
    import torch

    machine = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if program.device != "cpu":
        module = torch.get_device_module(program.device)
        machine.append(str(module.get_device_name()))
    return {
        "program": program.digest,
        "torch": str(torch.__version__),
        "git": str(torch.version.git_version),
        "machine": " ".join(machine),
        "device": program.device,
        "python": platform.python_version(),
        "parts": ",".join(program.parts),
        "runner": runner.digest(),
    }


def file_of(part: str) -> str:
    """The package of a part of the program; of the whole: `model.pt2`."""
    return f"{part}.pt2" if part else WHOLE_FILE


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of what lies in a package's folder; a half-written or damaged file shows."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != FACTS and not path.name.startswith("."):
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@dataclass(frozen=True, slots=True)
class InParts:
    """Compiled parts, and all of them as one."""

    whole: Callable[..., Any]
    parts: tuple[Any, ...]

    def __call__(self, **inputs: Any) -> Any:
        return self.whole(**inputs)


class Packages:
    """The background work of one engine: at most one compiler at a time."""

    def __init__(self, engine: RankingEngine, root: Path | None = None) -> None:
        self.engine, self.program = engine, engine.program
        facts = facts_of(self.program)
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        self.facts, self.folder = facts, (root or cache_folder()) / name
        self.state, self.reason = "off", ""
        self.seconds = 0.0  # the last compilation
        self.attempts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.work, name="packages", daemon=True)

    def start(self) -> None:
        """Look for a package, compile one if there is none, and swap it in."""
        self.thread.start()

    def stop(self) -> None:
        """End the compiler, too."""
        self.stopping.set()
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the C++ compilers that it began, too
        if self.thread.is_alive():
            self.thread.join(timeout=10)

    def work(self) -> None:
        """The thread: never raises; the reason of a failure is kept and logged."""
        try:
            if self.ensure():
                self.swap()
        except Exception as error:
            if self.attempts == 0 and self.program.exported is not None:
                log.warning("the package in %s cannot be loaded, it is compiled again: %s",
                            self.folder, first_line(error))  # fmt: skip
                self.discard()
                if not (self.folder / FACTS).exists():  # else the folder takes no change
                    self.work()
                    return
            self.fail("failed", first_line(error))

    def discard(self) -> None:
        """Forget what lies in the folder."""
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                path.unlink()

    def fail(self, state: str, reason: str) -> None:
        """Eager goes on answering."""
        self.state, self.reason = state, reason
        log.warning("no compiled code (%s), eager answers: %s", state, reason)

    def ensure(self) -> bool:
        """Whether there is a package; a compiler that dies is started again a few times."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.usable():
            log.info("a compiled package is there: %s", self.folder)
            return True
        if self.program.exported is None:
            self.fail("off", "a package cannot be compiled again")
            return False
        if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++")):
            self.fail("off", "there is no C++ compiler (g++) on this machine")
            return False
        if not all(self.made(part) for part in self.program.parts):
            if not self.stopping.is_set():
                self.fail("failed", self.reason)
            return False
        known = {**self.facts, FILES: digests(self.folder)}
        files.replace_file(self.folder / FACTS, json.dumps(known, indent=1).encode(), durable=True)
        return True

    def made(self, part: str) -> bool:
        """Whether a part is there, or could be compiled."""
        for attempt in range(TRIES):
            if self.stopping.is_set():
                return False
            self.attempts += 1
            code, said = self.compile(part)
            if code == 0 and (self.folder / file_of(part)).is_file():
                return True
            self.reason = f"the compiler ended with {code}: {said}"
            if self.stopping.wait(WAIT_SECONDS * 2**attempt):
                return False
        return False

    def usable(self) -> bool:
        """Whether a whole package of exactly these facts lies in the folder."""
        try:
            known = json.loads((self.folder / FACTS).read_text())
            written = known.pop(FILES, None)
        except (OSError, ValueError, AttributeError):
            return False
        if known != self.facts:
            log.warning("the package in %s is of other facts: it is refused", self.folder)
            return False
        if written != digests(self.folder):
            log.warning("the package in %s is not what was compiled: it is made again", self.folder)
            self.discard()
            return False
        return all((self.folder / file_of(part)).is_file() for part in self.program.parts)

    def compile(self, part: str = "") -> tuple[int, str]:
        """Run the compiler; its exit code and last words."""
        self.state = "compiling"
        began = time.monotonic()
        command = [
            sys.executable, "-m", "joymigrate.run.serve.ranking.compiler",
            str(self.program.path), str(self.folder / file_of(part)), self.program.device, part,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        _, said = self.process.communicate()
        self.seconds += time.monotonic() - began
        lines = said.decode(errors="replace").strip().splitlines()
        return self.process.returncode, lines[-1][:300] if lines else ""

    def swap(self) -> None:
        """Load the package, share the weights, compare with eager, then let it answer."""
        self.state = "comparing"
        # One runner per lane: a runner computes one batch at a time.
        runs = [
            runner.load(self.folder / file_of(part), len(self.engine.lanes), self.program.device)
            for part in self.program.parts
        ]
        for run in runs:
            share(self.program, run)
        users = self.program.users
        compiled: Any = runs[0] if users is None else InParts(users.whole(*runs), tuple(runs))
        trouble = disagreement(self.engine, compiled)
        if trouble:
            self.fail("refused", trouble)
            return
        for worker in self.engine.workers:
            worker.load(self.folder)
        self.program.compiled = compiled
        self.state, self.reason = "ready", ""
        log.info("compiled code answers now (compiled in %.1f s)", self.seconds)


def disagreement(engine: RankingEngine, compiled: Callable[..., Any]) -> str:
    """Where compiled code answers otherwise than eager on random requests; empty: nowhere."""
    program = engine.program
    tried = 0
    for place, size in enumerate((*TRIED, *SHAPES)):
        request = draw_if_possible(program.signature, *size, 100 + place)
        if request is None:
            continue
        with engine.gate.batch():  # no version comes between the two
            try:
                expected = as_arrays(program.run(request.arrays))
            except Exception:
                continue  # a size that this program does not take
            try:
                found = as_arrays(program.run(request.arrays, compiled))
            except Exception as error:
                return f"{size[0]} candidates, length {size[1]}: {first_line(error)}"
        tried += 1
        for left, right in zip(expected, found, strict=True):
            scale = max(1.0, float(np.abs(left).max(initial=0.0)))
            limit = TOLERANCE.get(precision(program), 1e-5) * scale
            if left.shape != right.shape or not np.allclose(left, right, rtol=0, atol=limit):
                return (
                    f"{size[0]} candidates, length {size[1]}: differs from eager by "
                    f"{float(np.abs(left - right).max()):.2g} (limit {limit:.2g})"
                )
    return "" if tried else "no random request could be tried"


def precision(program: RankingProgram) -> str:
    """The coarsest type of the weights."""
    found = {str(tensor.dtype).removeprefix("torch.") for tensor in program.state.values()}
    return next((name for name in ("bfloat16", "float16", "float32") if name in found), "float32")
