"""An outside catalogue of standbys and ranking models against the gateway and the ranking server.

    python benchmarks/serve_catalogue.py FOLDER standbys [--only MODE,MODE] [-o table.tsv]
    python benchmarks/serve_catalogue.py FOLDER ranking [-o table.tsv]

FOLDER has `standbys/` (`fake.py`, `modes.json`) and `ranking/` (`check.py`, one module a model,
`cases.tsv`). One line a case: what was expected, what came, right or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CASE_SECONDS = 150
AT_ONCE = 2
ROUNDS = 20  # of merged requests for each model
SIZES = ((3, 4), (40, 41), (7, 60), (128, 300))


def free_ports(count: int) -> list[int]:
    """Ports that nobody has at the moment."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in taken]


def try_standby(fake: Path, mode: str, case: dict[str, Any]) -> dict[str, Any]:
    """Run one ramp to its end."""
    gate, first, second = free_ports(3)
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[bytes]:
            quiet = subprocess.DEVNULL
            made = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=quiet, stderr=quiet
            )
            stack.callback(made.kill)
            return made

        python = sys.executable
        config = subprocess.run(
            [python, str(fake), "--mode", mode, "--config", f"{gate},{first},{second}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        Path(folder, "gateway.yaml").write_text(config.stdout)
        start(python, str(fake), "--mode", mode, "--arm", "primary", "--port", str(first))
        start(python, str(fake), "--mode", mode, "--port", str(second))
        program = str(Path(python).with_name("joymigrate"))
        start(program, "serve", "--config", "gateway.yaml", "--unverified")
        try:
            done = subprocess.run(
                [python, str(fake), "--mode", mode, "--drive", f"http://127.0.0.1:{gate}"],
                capture_output=True, text=True, timeout=CASE_SECONDS, cwd=folder,
            )  # fmt: skip
            said = (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1]
            right = done.returncode == 0
        except subprocess.TimeoutExpired:
            said, right = "timeout", False
    expected = "|".join([case["expected"], *case.get("accept", [])])
    return {
        "case": mode,
        "sound": case["sound"],
        "expected": expected,
        "right": right,
        "came": said,
    }


def try_standbys(folder: Path, only: set[str]) -> list[dict[str, Any]]:
    """All modes, two at a time."""
    fake = folder / "standbys" / "fake.py"
    modes = json.loads((folder / "standbys" / "modes.json").read_text("utf-8"))
    chosen = {name: case for name, case in modes.items() if not only or name in only}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = []
        for row in pool.map(lambda item: try_standby(fake, *item), chosen.items()):
            print(json.dumps(row), flush=True)
            rows.append(row)
        return rows


def try_ranking(folder: Path, only: set[str]) -> list[dict[str, Any]]:
    """All models: what the server decides, and merged scores against each alone."""
    place = folder / "ranking"
    sys.path.insert(0, str(place))
    with (place / "cases.tsv").open() as file:
        told = {Path(row["file"]).stem: row for row in csv.DictReader(file, delimiter="\t")}
    rows = []
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, str(place / "check.py"), "--export", made], cwd=place,
                       check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        for path in sorted(Path(made).glob("*.pt2")):
            if only and path.stem not in only:
                continue
            row = try_model(path, importlib.import_module(path.stem))
            row["expected"] = told[path.stem]["expected"]
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def try_model(path: Path, module: Any) -> dict[str, Any]:
    """Merged scores of one model, as the server merges."""
    import numpy as np

    from joymigrate.run.serve.ranking.batcher import BatchLimits
    from joymigrate.run.serve.ranking.lanes import RankingEngine
    from joymigrate.run.serve.ranking.program import load
    from joymigrate.run.serve.ranking.request import check
    from joymigrate.run.serve.ranking.trial import find_freedom

    program = load(path)
    freedom = find_freedom(program)
    program.signature = freedom.signature
    wrong, merged, most = 0, 0, 0.0
    for number in range(ROUNDS):
        sizes = SIZES[number % len(SIZES)]
        given = [module.inputs(count, seed=10 * number + place)
                 for place, count in enumerate(sizes)]  # fmt: skip
        arrays = [{name: np.asarray(one) for name, one in each.items()} for each in given]
        requests = [check(program.signature, each) for each in arrays]
        alone = [program.run(one.arrays)[0].numpy() for one in requests]
        engine = RankingEngine(program, limits=BatchLimits(seconds=60.0), alone=freedom.alone,
                               whole=freedom.whole)  # fmt: skip
        engine.merged = 1  # the comparison by sample is not what is tried here

        async def ask(engine: RankingEngine = engine, requests: Any = requests) -> list[Any]:
            waiting = [asyncio.ensure_future(engine.rank(one)) for one in requests]
            await asyncio.sleep(0)
            engine.start()
            return await asyncio.gather(*waiting)

        try:
            found = asyncio.run(ask())
        finally:
            engine.close()
        for one, single in zip(found, alone, strict=True):
            apart = float(np.abs(one.outputs[0] - single).max(initial=0.0))
            most, merged = max(most, apart), merged + (one.merged > 1)
            wrong += apart > 1e-4 * max(1.0, float(np.abs(single).max(initial=0.0)))
    independent = path.stem.startswith("i")
    right = not wrong and bool(freedom.alone) != independent
    return {"case": path.stem, "right": right, "wrong_scores": wrong, "merged_requests": merged,
            "largest_difference": most, "alone": freedom.alone}  # fmt: skip


def main() -> None:
    """Run a part of the catalogue."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", choices=["standbys", "ranking"])
    parser.add_argument("--only", default="")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    only = set(filter(None, asked.only.split(",")))
    run = try_standbys if asked.part == "standbys" else try_ranking
    rows = run(asked.folder, only)
    print(f"{sum(row['right'] for row in rows)} of {len(rows)} right")
    if asked.output:
        lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
        asked.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
