"""One process of a run: `python -m joymigrate.run.train.worker RUN_FOLDER`.

Started by launch.py, by torchrun, or by a cluster; the environment says which rank this is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from joymigrate.device import leave_group
from joymigrate.errors import Exit, JoyError
from joymigrate.run.train import group
from joymigrate.run.train.job import Job
from joymigrate.run.train.run_folder import ASK_TO_STOP, MODEL, QUIET, RunFolder, RunHeldError

ALONE_S = 20.0  # what a worker without its launcher has to save and end in


def say(line: str) -> None:
    """A line for the user, unless told to be quiet."""
    if not os.environ.get(QUIET):
        print_error(line)


def print_error(line: str) -> None:
    """A line that even the quiet get."""
    print(line, file=sys.stderr, flush=True)


def main(folder: Path, tell: Callable[[str], None] = say) -> int:
    """Train; the exit code is 0 when finished, 130 when stopped, 2 for a mistake of the user's."""
    # torch tells about every FSDP module whose output is a view; nothing here changes one in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    run = RunFolder(folder)
    if group.in_group():
        follow_launcher()
    if group.rank() > 0:
        return work(run, tell)
    try:
        with run.held(tell):
            return work(run, tell)
    except RunHeldError as error:  # no report: the folder is another process's
        print_error(f"error: {error}")
        if group.in_group():
            sys.stderr.flush()
            os._exit(Exit.ERROR)
        return Exit.ERROR


def follow_launcher() -> None:
    """Save and stop when the process that started this one is gone; end when that takes too long.

    torch gives workers sessions of their own, so nothing else tells them of a launcher's death.
    """
    launcher = os.getppid()

    def look() -> None:
        while os.getppid() == launcher:
            time.sleep(1.0)
        print_error(f"the launcher (process {launcher}) is gone: saving and stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ALONE_S)
        os._exit(Exit.INTERRUPTED)

    threading.Thread(target=look, name="launcher", daemon=True).start()


def work(run: RunFolder, tell: Callable[[str], None]) -> int:
    """`main`, in a folder that no other run writes to."""
    job = run.job()
    first = group.rank() == 0
    device = group.choose(job.device, tell)
    try:
        with stoppable(run) as asked:
            group.open_group(device)
            outcome = train(job, run, device, asked, tell)
    except JoyError as error:
        tell_others(error)
        if first or group.in_group():
            run.report(state="failed", message=str(error))
        if first:
            print_error(f"error: {error}")
        if not group.in_group():
            return Exit.ERROR
        sys.stderr.flush()
        os._exit(Exit.ERROR)
    except Exception as error:
        if not group.in_group():
            raise
        tell_others(error)
        # Others may be gone: leaving the group, or threads that wait for them, would hang.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    leave_group()
    return Exit.OK if outcome == "finished" else Exit.INTERRUPTED


def tell_others(error: BaseException) -> None:
    """Where tables are cut over processes, the others hear of it instead of waiting."""
    failures = sys.modules.get("joymigrate.run.train.tables.failures")
    if failures is not None and failures.Failures.one is not None:
        failures.Failures.one.tell(error)


def train(
    job: Job, run: RunFolder, device: object, asked: Callable[[], bool], tell: Callable[[str], None]
) -> str:
    """Assemble and run the loop; report how it ended."""
    from joymigrate.device import Device
    from joymigrate.run.train import assemble, memory
    from joymigrate.run.train.loop import Loop

    assert isinstance(device, Device)
    if job.data.stream is not None:
        from joymigrate.run.train.stream.trainer import run_stream

        outcome = run_stream(job, run, device, asked, tell)
        run.report(state=outcome)
        return outcome
    parts = None
    try:
        parts = assemble.assemble(job, run, device, tell)
        loop = Loop(parts, asked)
        started = time.monotonic()
        outcome = loop.run()
        parts.keeper.close()
    except Exception as error:
        if memory.is_out_of_memory(error):
            raise memory.explain_memory(error, job, device) from error
        raise
    finally:
        if parts is not None:
            parts.feed.close()
            if parts.log is not None:
                parts.log.close()
    if parts.first_rank:
        finish(job, run, parts, loop, outcome, time.monotonic() - started)
    return outcome


def finish(
    job: Job,
    run: RunFolder,
    parts: object,
    loop: object,
    outcome: str,
    seconds: float,
) -> None:
    """Export the model, the best one where one is kept, and write the last status."""
    from joymigrate.run.train.export import export
    from joymigrate.run.train.loop import Loop, LoopParts

    assert isinstance(parts, LoopParts)
    assert isinstance(loop, Loop)
    spent = parts.keeper.spent
    traffic = parts.traffic
    if traffic is not None:
        run.report(communication=traffic.report())
    run.report(
        **loop.last,
        state=outcome,
        ended_early=loop.ends_early(),
        seconds=round(seconds, 3),
        checkpoint={
            "saves": spent.saves,
            "blocked_s": round(spent.blocked_s, 4),
            "bytes": spent.bytes,
        },
    )
    if outcome == "finished" and job.checkpoint.export:
        best = loop.best.step if loop.best is not None else None
        export(run, run.path / MODEL, best)


@contextlib.contextmanager
def stoppable(run: RunFolder) -> Iterator[Callable[[], bool]]:
    """A function that tells whether to stop: after SIGTERM, SIGUSR1, Ctrl-C, or a `stop` file.

    A second signal ends the process at once.
    """
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, handle) for number in ASK_TO_STOP}
    try:
        yield lambda: bool(seen) or run.stop_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
