"""Learning from a stream: from a click to its published version, and what kills leave behind.

    python benchmarks/continuous.py [freshness] [kills] [--kills 50]

`freshness` sends a row every tenth of a second into a watched folder, at the default settings and
at the smallest, and reads the age of the newest row in every version. `kills` ends the trainer by
SIGKILL at random moments; every version must be whole, and the last model that of a run which
nobody killed, to the bit: then no row was lost or counted twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa
import yaml
from pyarrow import parquet

from joymigrate.run.train.formats import versions

FEATURES = {
    "label": "click", "time": "time", "dim": 4,
    "features": {"user": {"type": "id"}, "item": {"type": "id"}, "price": {"type": "number"}},
}  # fmt: skip


def write(folder: Path, number: int, count: int) -> None:
    """One file of rows, under its name when it is whole; every row has an item of its own."""
    draw = np.random.default_rng(number)
    columns = {
        "user": draw.integers(0, 40, count), "item": np.arange(count) + number * count,
        "price": draw.random(count), "time": np.full(count, time.time()),
        "click": draw.integers(0, 2, count).astype(np.int8),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".part-{number:06d}.parquet"
    parquet.write_table(pa.table(columns), hidden)
    hidden.rename(folder / f"part-{number:06d}.parquet")


def job(folder: Path, source: Path, idle_s: float | None, **publish: Any) -> Path:
    """A job over a watched folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.yaml").write_text(yaml.safe_dump(FEATURES))
    stream = {"source": str(source), **({"idle_s": idle_s} if idle_s else {})}
    document = {
        "model": {"from_config": {"model_type": "deepfm", "hidden": [8]}}, "task": "ctr",
        "device": "cpu", "tables": {"optimiser": "adagrad"}, "batch": {"size": 32},
        "data": {"schema": "features.yaml", "stream": stream},
        **({"publish": publish} if publish else {}), "run": "run",
    }  # fmt: skip
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return folder / "job.yaml"


def start(path: Path) -> subprocess.Popen[bytes]:
    """The trainer as a process of its own."""
    command = [sys.executable, "-m", "joymigrate", "train", str(path), "--unverified"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)


def end(process: subprocess.Popen[bytes], how: int) -> None:
    """End the trainer and what it started."""
    os.killpg(process.pid, how)
    process.wait()


def freshness(seconds: float, only: str | None) -> None:
    """The greatest age of the newest row, and of a row at most: that and an interval more."""
    for name, every, limit in (("default", 30.0, 60), ("smallest", 0.5, 5)):
        if only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "in").mkdir()
            settings = {} if name == "default" else {"every_s": every}
            process = start(job(folder, folder / "in", None, **settings))
            metrics, until, number, waiting = folder / "run" / "metrics.jsonl", None, 0, 0
            while until is None or time.monotonic() < until:
                write(folder / "in", number, 4)
                number += 1
                time.sleep(0.1)
                if until is None and metrics.exists():
                    until = time.monotonic() + max(seconds, 3.2 * every)
                    waiting = number
            end(process, signal.SIGKILL)
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        # Rows that lay there before the trainer ran: it has caught up when a version reaches one
        # that came after its first version.
        ahead = 4 * waiting
        caught = next((n for n, line in enumerate(lines) if line["samples"] >= ahead), None)
        if caught is None or caught + 1 == len(lines):
            print(
                f"{name} settings: {ahead} rows lay there; not behind them in {len(lines)} versions"
            )
            continue
        behind, lines = lines[: caught + 1], lines[caught + 1 :]
        print(
            f"{name} settings: {ahead} rows lay there at the first version; behind them after "
            f"{len(behind)} versions, {behind[-1]['freshness_s']:.2f} s old then"
        )
        ages = sorted(line["freshness_s"] for line in lines)
        newest, usual = ages[-1], ages[len(ages) // 2]
        # A row waits for the next version at most: the time between two of them.
        print(
            f"{name} settings: {len(lines)} versions, the newest row {usual:.2f} s old, "
            f"{newest:.2f} s at most, any row {newest + every:.1f} s (<= {limit})"
        )


def contents(folder: Path) -> dict[str, Any]:
    """The newest version, every file compared with its hash."""
    store = versions.open_versions(folder / "run" / "published")
    links = versions.chain(store)
    versions.verify(store, links)
    return {"last": links[-1], **versions.replay(store, links)}


def kills(count: int) -> None:
    """Kill, look, go on."""
    import torch

    draw, torn, done = random.Random(0), 0, 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files, each = 10 * count, 500
        for number in range(files):
            write(folder / "in", number, each)
        broken = job(folder / "broken", folder / "in", 2.0, every_s=0.5, snapshot_every=3)
        known = 0
        for turn in range(count):
            process = start(broken)
            metrics = folder / "broken" / "run" / "metrics.jsonl"
            until = time.monotonic() + 60
            while time.monotonic() < until and process.poll() is None:
                seen = len(metrics.read_text().splitlines()) if metrics.exists() else 0
                if seen > known:
                    break
                time.sleep(0.05)
            time.sleep(draw.random() * 1.5)
            if process.poll() is None:
                end(process, signal.SIGKILL)
                done += 1
            known = len(metrics.read_text().splitlines()) if metrics.exists() else 0
            try:
                contents(folder / "broken")
            except Exception as error:
                torn += 1
                print(f"torn: {error}", flush=True)
            print(f"kill {turn + 1} of {count}: {done} done, {torn} torn", flush=True)
        start(broken).wait()
        start(job(folder / "whole", folder / "in", 2.0, every_s=0.5, snapshot_every=3)).wait()
        one, other = contents(folder / "broken"), contents(folder / "whole")
    rows = one["last"]["rows"]["to"]
    same = all(
        torch.equal(value, other["tables"][name][key])
        for name, table in one["tables"].items()
        for key, value in table.items()
    ) and all(torch.equal(value, other["dense"][key]) for key, value in one["dense"].items())
    print(
        f"{done} kills, {torn} torn versions (0); {rows:,} of {files * each:,} rows counted, "
        f"model {'the same bits' if same else 'DIFFERENT'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["freshness", "kills"])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0, help="of freshness at the smallest")
    parser.add_argument("--only", choices=("default", "smallest"), help="of freshness")
    options = parser.parse_args()
    for part in options.parts:
        if part == "kills":
            kills(options.kills)
        else:
            freshness(options.seconds, options.only)


if __name__ == "__main__":
    main()
