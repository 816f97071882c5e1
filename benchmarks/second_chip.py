"""A chip-day kit on a second simulated chip with planted deviations: are all found by name?

    python -m benchmarks.second_chip [FOLDER] [--plants second_chip_fresh]

Makes a kit from the rehearsed chip, runs it on the second one, scores it, and makes the next kit
with what was learned. Takes minutes; with FOLDER a second start goes on where the first stopped.
The plants are a file of tests/samples: the first forty, or those that were written afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from joymigrate.schema import read_yaml

SAMPLES = Path(__file__).parents[1] / "tests" / "samples"
START = """\
import sys
sys.path.insert(0, {samples!r})
if "--worker" in sys.argv or "--rank" in sys.argv:
    import second_chip
    second_chip.deviate()
"""


def joymigrate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One command with a cache of its own for calibrations."""
    environment = {
        **os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "JOYMIGRATE_CALIBRATION": str(folder / "calibration.json"),
        "SECOND_CHIP_PLANTS": str(folder / "plants.json"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "joymigrate", *words],
        env=environment, capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip


def play(folder: Path, zipped: Path, name: str) -> dict[str, Any]:
    """Run a kit on the second chip and read its score."""
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(folder / name)
    run = folder / name / "kit" / "run.py"
    run.write_text(START.format(samples=str(SAMPLES)) + run.read_text())
    score = folder / f"{name}.json"
    program = [sys.executable, str(run), "--device", "npu:0", "--state", str(folder / f"{name}-s")]
    done = joymigrate(
        folder, "rehearse", "-q", "--strict", "--devices", "2", "--",
        *program, "-o", str(score), "--patience", "90",
    )  # fmt: skip
    if not score.is_file():
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(score.read_text())
    return found


def main() -> int:
    """Print what was found, missed and alarmed, before and after; 1 unless all of it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--plants", default="second_chip")
    given = parser.parse_args()
    plants = read_yaml(SAMPLES / f"{given.plants}.yaml")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary).resolve()
        folder.mkdir(exist_ok=True)
        (folder / "plants.json").write_text(json.dumps(plants))
        start = time.time()
        if not (folder / "kit.zip").is_file():
            print(joymigrate(folder, "kit", "make", "-o", "kit.zip").stderr.strip())
        score = play(folder, folder / "kit.zip", "first")
        rows = {row["id"]: row for row in score["results"]}
        named = [p for p in plants if p["says"] in rows.get(p["case"], {}).get("deviations", ())]
        cases = {plant["case"] for plant in plants}
        alarms = [
            row
            for row in rows.values()
            if row["deviations"] and row["id"] not in cases and not row.get("because")
        ]
        print(f"{len(rows)} cases, {score['seconds']:.0f} s in the last start")
        print(f"found by name: {len(named)} of {len(plants)}; other alarms: {len(alarms)}")
        met = set((folder / "plants.json.met").read_text().splitlines())
        for plant in plants:
            if "op" in plant and plant["case"] not in met:
                print("  never took effect:", plant["case"])
            if plant not in named:
                row = rows.get(plant["case"], {})
                print(
                    "  missed",
                    plant["case"],
                    plant["says"],
                    row.get("deviations"),
                    row.get("outcome"),
                )
        for row in alarms:
            print("  alarm", row["id"], row["deviations"], row["message"])
        scored = joymigrate(folder, "kit", "score", str(folder / "first.json"))
        print("\n".join((scored.stdout or scored.stderr).splitlines()[:2]))
        if not (folder / "next.zip").is_file():
            joymigrate(folder, "kit", "make", "-o", "next.zip")
        again = play(folder, folder / "next.zip", "second")
        left = [row for row in again["results"] if row["deviations"] and not row.get("because")]
        predicted = sum(bool(row["predicted"].get("known_deviation")) for row in again["results"])
        print(
            f"after kit score: {predicted} predicted, {len(left)} not; {time.time() - start:.0f} s"
        )
        for row in left:
            print("  not predicted", row["id"], row["deviations"], row["outcome"])
    return int(len(named) < len(plants) or bool(alarms) or bool(left))


if __name__ == "__main__":
    sys.exit(main())
