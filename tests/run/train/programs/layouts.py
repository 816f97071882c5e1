"""Several runs, one after another, in the same processes: JOB OUT LAYOUT… (`name=k:v,k:v`).

A layout may be followed by `+k:v`: stop after half of the steps and continue on that layout.
"""

import sys
from pathlib import Path

from joymigrate.device import leave_group
from joymigrate.run.train import group, job, worker
from joymigrate.run.train.run_folder import RunFolder


def sets_of(text: str) -> list[str]:
    return [f"layout.{part.replace(':', '=')}" for part in text.split(",") if part]


def run(path: Path, folder: Path, sets: list[str], device: object, fresh: bool, half: bool) -> None:
    made = job.load(path, [*sets, f"run={folder}", f"device={sys.argv[1]}"])
    place = RunFolder(folder)
    if group.rank() == 0:
        place.begin(made, fresh=fresh)
    group.barrier()

    def asked() -> bool:
        return half and group.rank() == 0 and len(place.metrics()) >= made.steps // 2 - 1

    worker.train(made, place, device, asked, lambda line: None)
    group.barrier()


def main() -> None:
    _, name, path, out, *layouts = sys.argv
    device = group.choose(name, print)
    group.open_group(device)
    for text in layouts:
        title, _, both = text.partition("=")
        first, _, second = both.partition("+")
        folder = Path(out) / title
        run(Path(path), folder, sets_of(first), device, True, bool(second))
        if second:
            run(Path(path), folder, sets_of(second), device, False, False)
    leave_group()


main()
