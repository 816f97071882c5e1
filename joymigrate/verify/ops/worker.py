"""Replays in a process of its own, which is started again behind a call that killed it.

An operator with odd inputs may end the process (a signal in a kernel, an abort of the driver).
The worker says on its output what it is about to do, so that the parent knows what it died of.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.language import Text, restore_texts, with_texts

MOST_DEATHS = 50
POLL_S = 0.2
STDERR = 2  # what operators print is talk


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """What a worker is to do; goes to it as JSON."""

    trace: str
    device: str = "cpu"
    chip: str | None = None
    noise: float = 0.0
    faults: Mapping[str, float] = field(default_factory=dict)
    edges: bool = True
    backward: bool = True
    level: str | None = None
    seed: int = 0
    max_elements: int = 1 << 27
    only: tuple[str, ...] = ()
    evidence: str | None = None
    done: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class WorkerReport:
    """All rows, and what the worker said of its device."""

    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    deaths: int = 0


def work(
    order: WorkerOrder,
    start: Sequence[str] = (),
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> WorkerReport:
    """Run workers until everything is done. `start` is a command that starts the worker's command
    (`joymigrate rehearse --`), empty for none."""
    outcome = WorkerReport([], {})
    done: list[tuple[int, str]] = []
    while True:
        state = one_worker(order, done, start, outcome, tell)
        if state.code == 0:
            return outcome
        if state.code > 0 or state.at is None or outcome.deaths >= MOST_DEATHS:
            raise JoyError(
                f"the replay ended with exit code {state.code}",
                where=order.trace,
                help="its messages are above; --op NAME replays one operator alone",
            )
        outcome.deaths += 1
        done.append(state.at)
        row = death(state, signal.Signals(-state.code).name)
        if row is not None:
            outcome.rows.append(row)


@dataclass(slots=True)
class WorkerState:
    """How far a worker came: the job that it began last, its side, and its exit code."""

    at: tuple[int, str] | None = None
    side: str = ""
    call: dict[str, Any] = field(default_factory=dict)
    code: int = 0


def one_worker(
    order: WorkerOrder,
    done: list[tuple[int, str]],
    start: Sequence[str],
    outcome: WorkerReport,
    tell: Callable[[int, int], None],
) -> WorkerState:
    """Run one worker to its end and read what it says."""
    text = json.dumps({**asdict(order), "done": done})
    state, part = WorkerState(), ""
    with tempfile.TemporaryDirectory(prefix="joymigrate-ops-") as folder:
        # A file and no pipe: a launcher between us passes no descriptors on.
        log = Path(folder) / "messages.jsonl"
        log.touch()
        command = [*start, sys.executable, "-m", __name__, str(log)]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=STDERR) as child,
            log.open(encoding="utf-8") as lines,
        ):
            assert child.stdin is not None
            child.stdin.write(text.encode())
            child.stdin.close()
            while True:
                ended = child.poll() is not None  # asked first: what it wrote last is read below
                for line in lines:
                    part += line
                    if part.endswith("\n"):  # else the worker is still writing it
                        hear(restore_texts(json.loads(part)), state, done, outcome)
                        part = ""
                tell(len(done), int(outcome.facts.get("total", 0)))
                if ended:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=POLL_S)
            state.code = child.returncode
    if state.code > 128:  # a shell or a launcher between us says signals this way
        state.code = 128 - state.code
    return state


def hear(
    message: Mapping[str, Any],
    state: WorkerState,
    done: list[tuple[int, str]],
    outcome: WorkerReport,
) -> None:
    """Take one message of the worker."""
    if "error" in message:
        raise JoyError(
            message["error"]["what"], where=message["error"]["where"], help=message["error"]["help"]
        )
    if "facts" in message:
        outcome.facts.update(message["facts"])
    elif "side" in message:
        state.at, state.side = (message["job"][0], message["job"][1]), message["side"]
        state.call = message["call"]
    else:
        done.append((message["job"][0], message["job"][1]))
        outcome.rows += message["rows"]


def death(state: WorkerState, name: str) -> dict[str, Any] | None:
    """The row for the job that killed a worker: a failure where the target did it.

    The CPU's own crash on an edge says nothing about the target.
    """
    assert state.at is not None
    if state.side != "target" and state.at[1] != "recorded":
        return None
    failed = state.side == "target"
    return {
        **state.call,
        "case": state.at[1],
        "phase": "forward",
        "status": "FAIL" if failed else "UNCOMPARED",
        "metric": "crash" if failed else "not compared",
        "reason": Text("the {side} ended the process with {name}", side=state.side, name=name),
    }


def main(log: Path) -> None:
    """The worker: read the order, replay, write everything to the log, whole lines at a time."""
    with log.open("ab", buffering=0) as file:

        def say(message: Mapping[str, Any]) -> None:
            file.write(json.dumps(with_texts(message)).encode() + b"\n")

        try:
            for message in messages(json.loads(sys.stdin.read()), say):
                say(message)
        except JoyError as error:
            say({"error": {"what": error.what, "where": error.where, "help": error.help}})


def messages(
    raw: Mapping[str, Any], say: Callable[[Mapping[str, Any]], None]
) -> Iterator[dict[str, Any]]:
    """Facts first, then one message per job."""
    import torch

    from joymigrate.verify.ops.case_store import kept_of
    from joymigrate.verify.ops.document import brief, row
    from joymigrate.verify.ops.places import find_device
    from joymigrate.verify.ops.read import read_calls
    from joymigrate.verify.ops.replay import ReplayJob, ReplayOptions, replay
    from joymigrate.verify.ops.target import ReplayTarget
    from joymigrate.verify.tolerance import Tolerance

    calls = read_calls(Path(raw["trace"]))
    if raw["only"]:
        calls = [c for c in calls if any(word in c.name for word in raw["only"])]
    device = find_device(raw["device"], raw["chip"])
    evidence = raw.get("evidence")
    kept = kept_of(Path(raw["trace"]), Path(evidence) if evidence else None)
    facts = {
        "total": len(calls),
        "uncovered": kept.uncovered,
        "torch": torch.__version__,
        "device": device.type,
        "device_name": device.name(),
        "rehearsal": device.rehearsal,
    }
    yield {"facts": facts}
    target = ReplayTarget(device, raw["noise"], raw["faults"])
    options = ReplayOptions(
        raw["edges"], raw["backward"], raw["level"], raw["seed"], raw["max_elements"]
    )
    done = frozenset(ReplayJob(number, case) for number, case in raw["done"])
    tolerance = Tolerance.of(raw["chip"])

    def announce(job: ReplayJob, side: str) -> None:
        call = brief(calls[job.number])
        say({"job": [job.number, job.case], "side": side, "call": call})

    for job, results in replay(calls, target, tolerance, options, announce, done, kept):
        rows = [row(result) for result in results]
        yield {"job": [job.number, job.case], "rows": rows}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
