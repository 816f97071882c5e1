"""What does recording cost a step? Process time per step, plain and recorded, side by side.

`watched` are the steps behind the exact one, where only first calls are recorded.

The loop is the GPT of tests/profile/programs/models.py on one thread. Rounds alternate between a
plain step and a recorded one, so that a busy machine slows both; the median of the ratios counts.

    python benchmarks/recorder_overhead.py [rounds]
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
PROGRAMS = Path(__file__).parent.parent / "tests" / "profile" / "programs"


def steps() -> Callable[[], float]:
    """One training step of the GPT, as a function."""
    sys.path.insert(0, str(PROGRAMS))
    import models
    import torch

    model, batch, criterion, _ = models.gpt()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        x, y = batch()
        loss = criterion(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return float(loss.item())

    return step


def spent(function: Callable[[], object]) -> float:
    """Process time of one call, ms."""
    begin = time.process_time()
    function()
    return (time.process_time() - begin) * 1e3


def main(rounds: int) -> int:
    """Print the table; 1 when the timed steps cost more than 30 %."""
    from joymigrate.profile.recorder.operators import ProgramContext, Recording
    from joymigrate.profile.recorder.timing import Timer
    from joymigrate.profile.recorder.whole_run import WholeRun

    step = steps()
    for _ in range(5):
        step()
    gc.disable()
    plain: list[float] = []
    ratios: dict[str, list[float]] = {"timed": [], "timed, with stacks": [], "exact": [],
                                    "watched": []}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, stack in (("timed", False), ("timed, with stacks", True)):
                base = statistics.median(spent(step) for _ in range(3))
                plain.append(base)
                timer = Timer(stack=stack)
                timer.start()
                spent(step)  # the first one fills the profiler's buffers
                costs = [spent(step) for _ in range(3)]
                timer.stop(Path(folder) / "t.json.gz")
                ratios[name].append(statistics.median(costs) / base)
            base = statistics.median(spent(step) for _ in range(3))
            recording = Recording(ProgramContext(phase="forward"))
            recording.begin()
            spent(step)  # the first one makes the signatures
            costs = [spent(step) for _ in range(3)]
            recording.end()
            ratios["exact"].append(statistics.median(costs) / base)
            base = statistics.median(spent(step) for _ in range(5))
            run = WholeRun(ProgramContext(), Path(folder))
            run.start([])
            for _ in range(2):  # what is new is recorded here
                spent(step)
            costs = [spent(step) for _ in range(5)]
            run.stop("exit")
            ratios["watched"].append(statistics.median(costs) / base)
    print(f"plain step: {statistics.median(plain):.1f} ms of process time, {rounds} rounds")
    print("| kind of step | overhead |\n|---|---|")
    for name, found in ratios.items():
        print(f"| {name} | {100 * (statistics.median(found) - 1):+.0f} % |")
    return int(statistics.median(ratios["timed"]) > 1.3)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
