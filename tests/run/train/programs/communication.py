"""JOB OUT DTYPE:AXIS…: the same run with gradients exchanged in several forms, one after another."""

import sys
from pathlib import Path

from joymigrate.device import leave_group
from joymigrate.run.train import group, job, worker
from joymigrate.run.train.run_folder import RunFolder


def main() -> None:
    _, path, out, *forms = sys.argv
    device = group.choose("cpu", print)
    group.open_group(device)
    for form in forms:
        dtype, _, axis = form.partition(":")
        folder = Path(out) / f"{dtype}-{axis}"
        made = job.load(Path(path), [f"run={folder}", f"comm={dtype}", f"layout.{axis}=2"])
        if group.rank() == 0:
            RunFolder(folder).begin(made, fresh=True)
        group.barrier()
        worker.train(made, RunFolder(folder), device, lambda: False, lambda line: None)
        group.barrier()
    leave_group()


main()
