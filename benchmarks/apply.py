"""What an atomic rewrite costs, and for how long a killed one could leave a mixed tree.

    python benchmarks/apply.py [FILES]

Writes FILES (default 1,000) small files as one step of a ledger and rolls it back, in a temporary
folder. Peers in the same run: overwriting every file, and the same with a flush to the disk.
`renames` is the time between the first and the last rename of the step: the window in which a power
cut leaves a mixed tree until the next command.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from joymigrate.ledger import Change, Ledger, Step, transaction

OLD = b"import torch\n" + b"x = torch.cuda.synchronize()\n" * 100
NEW = OLD.replace(b"cuda", b"npu")


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU milliseconds of `act`."""
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def plain(paths: list[Path], data: bytes, *, flush: bool) -> None:
    """Overwrite files one by one, as most tools do."""
    for path in paths:
        with open(path, "wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())


def main() -> None:
    """Print a table and a JSON line."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    moments: list[float] = []
    real = transaction.move_into_place

    def noted(staged: Path, target: Path) -> None:
        moments.append(time.perf_counter())
        real(staged, target)
        moments.append(time.perf_counter())

    transaction.move_into_place = noted
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths = [root / f"m{number}.py" for number in range(count)]
        found = {"files": count}
        rows = {
            "plain writes": lambda: plain(paths, OLD, flush=False),
            "plain writes, flushed": lambda: plain(paths, OLD, flush=True),
            "one step of the ledger": lambda: Ledger(root).apply(
                [Change(path.name, OLD, NEW) for path in paths], Step(kind="rewrite")
            ),
        }
        for name, act in rows.items():
            found[name] = [round(ms, 1) for ms in timed(act)]
        found["renames"] = round(1000 * (moments[-1] - moments[0]), 2)
        found["rollback"] = [round(ms, 1) for ms in timed(Ledger(root).rollback)]
        assert all(path.read_bytes() == OLD for path in paths)
    for name, value in found.items():
        if isinstance(value, list):
            print(f"{name:<24} {value[0]:9.1f} ms wall {value[1]:9.1f} ms CPU")
    print(f"{'renames':<24} {found['renames']:9.2f} ms wall")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
