"""What the work to come looks like: typical requests, drawn from the jobs that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.policies import Typical

COVERED = 0.95  # the most frequent requests that make up this share of the pods are typical


def typical(jobs: Iterable[GangJob]) -> tuple[Typical, ...]:
    """Typical requests per pod, most frequent first; shares add up to 1."""
    seen: Counter[tuple[int, int, int, int]] = Counter()
    for job in jobs:
        for task in job.tasks:
            seen[task.cards, task.milli, task.cpu_milli, task.memory_mib] += task.pods
    pods = sum(seen.values())
    merged: Counter[tuple[int, int, int]] = Counter()
    memory: dict[tuple[int, int, int], int] = {}
    for (cards, milli, cpu, mib), number in seen.items():
        merged[cards, milli, cpu] += number
        memory[cards, milli, cpu] = max(memory.get((cards, milli, cpu), 0), mib)
    kept, covered = [], 0
    for key, number in sorted(merged.items(), key=lambda item: -item[1]):
        if covered >= COVERED * pods:
            break
        kept.append((key, number))
        covered += number
    return tuple(
        Typical(cards, milli, cpu, number / covered, memory[cards, milli, cpu])
        for (cards, milli, cpu), number in kept
    )
