"""`joymigrate serve --kind generative` under load: what continuous admission gives.

    python -m benchmarks.beam_serving [--items 20000] [--seconds 15]

Starts the command on a random OneRec-style model, and prints requests/s, p50 and p99 of 1 and of 16
clients that ask again as soon as they have an answer, and the ratio of the two. Every answer is
compared with that of the same request alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from joymigrate.run.train.recommendation import sizes_of
from joymigrate.run.train.samples.job import TableSettings
from joymigrate.run.train.samples.lookup import Recommender
from joymigrate.run.train.samples.schema import Feature, FeatureSchema
from joymigrate.run.train.semantic_ids.codes import distinct

CODES, QUESTIONS = (256, 256), 64


def export(folder: Path, items: int) -> None:
    """A model of random weights."""
    features = {
        "item": Feature("id", rows=items),
        "seen": Feature("sequence", table="item", length=50),
    }
    torch.manual_seed(0)
    codes = distinct(torch.arange(items), torch.randint(256, (items, 2)), CODES)
    schema = FeatureSchema(features, ("click",), dim=64)
    model = Recommender(schema, sizes_of({"model_type": "onerec"}), TableSettings(), 0, codes)
    model.save_pretrained(folder)


def ask(url: str, history: list[int]) -> list[int]:
    """The ten best items."""
    body = json.dumps({"inputs": {"history": history}, "n": 10, "beam_width": 64}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/rank", body), timeout=60) as got:
        found: list[int] = json.loads(got.read())["outputs"]["item"]
    return found


def load(url: str, clients: int, seconds: float, known: list[list[int]]) -> tuple[float, str]:
    """Requests a second, and a line."""
    ends, taken, wrong = time.monotonic() + seconds, [], []

    def client(number: int) -> None:
        place = number
        while time.monotonic() < ends:
            began = time.perf_counter()
            found = ask(url, question(place % QUESTIONS, len(known)))
            taken.append(time.perf_counter() - began)
            wrong.append(found != known[place % QUESTIONS])
            place += clients

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    taken.sort()
    per_s = len(taken) / seconds
    middle, high = (1e3 * taken[int(share * (len(taken) - 1))] for share in (0.5, 0.99))
    return per_s, (f"{clients:3} clients: {per_s:.1f} requests/s, p50 {middle:.0f} ms, "
                   f"p99 {high:.0f} ms, {sum(wrong)} of {len(wrong)} other answers")  # fmt: skip


def question(number: int, count: int) -> list[int]:
    """A history."""
    return [(number * 31 + place * 17) % count for place in range(5 + number % 40)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "shop"
        export(folder, options.items)
        process = subprocess.Popen(
            [sys.executable, "-m", "joymigrate", "serve", str(folder), "--port", "0",
             "--log-format", "json"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            url = next(
                found["url"] for line in process.stderr
                if line.startswith("{") and (found := json.loads(line)).get("url")
            )  # fmt: skip
            threading.Thread(target=process.stderr.read, daemon=True).start()
            known = [ask(url, question(number, QUESTIONS)) for number in range(QUESTIONS)]
            speeds = []
            for clients in (1, 16):
                per_s, line = load(url, clients, options.seconds, known)
                speeds.append(per_s)
                print(line, flush=True)
            print(f"ratio {speeds[1] / speeds[0]:.2f}")
        finally:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    main()
