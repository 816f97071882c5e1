"""How many lanes answer most requests on this machine: measured at the start."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from joymigrate import processors
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.program import RankingProgram

log = logging.getLogger("joymigrate.serve")
CANDIDATES, LENGTH, REQUESTS = 8, 32, 3  # of the request, and of the batch, that is timed
GAIN = 1.1  # more lanes are taken for a tenth more requests a second
TRY_SECONDS = 0.4


@contextmanager
def threads_for(lanes: int) -> Iterator[None]:
    """torch's threads divided among lanes, as they were afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // lanes))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose(program: RankingProgram, alone: str = "", most: int | None = None) -> int:
    """How many lanes (threads) answer most requests here; more only where they gain a tenth."""
    cores = most or processors.available()
    counts = [count for count in (1, 2, 4, 8, 16) if count <= cores]
    if len(counts) == 1:
        return 1
    many = 1 if alone else REQUESTS
    requests = [draw(program.signature, CANDIDATES, LENGTH, seed) for seed in range(many)]
    batch = merge(program.signature, requests)
    best, chosen = 0.0, 1
    said = []
    for count in counts:
        with threads_for(count):
            rate = rate_of(program, batch.arrays, count)
        said.append(f"{count}: {many * rate:.0f}/s")
        if rate > GAIN * best:
            best, chosen = rate, count
    log.info("lanes: %d (%s)", chosen, ", ".join(said))
    return chosen


def rate_of(program: RankingProgram, arrays: dict[str, Any], lanes: int) -> float:
    """Batches a second of so many threads."""
    done = [0] * lanes
    program.run(arrays)
    end = time.perf_counter() + TRY_SECONDS

    def lane(place: int) -> None:
        while time.perf_counter() < end:
            program.run(arrays)
            done[place] += 1

    threads = [threading.Thread(target=lane, args=(place,)) for place in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / TRY_SECONDS
