"""The citation graph cora in its own format, of made papers: cora.py FOLDER [PAPERS WORDS]."""

import sys
from pathlib import Path

import numpy as np

CLASSES = (
    "Neural_Networks", "Rule_Learning", "Reinforcement_Learning", "Probabilistic_Methods",
    "Theory", "Genetic_Algorithms", "Case_Based",
)  # fmt: skip


def main(folder: str, papers: str = "2708", words: str = "1433") -> None:
    """Papers of one class share words and cite one another."""
    root, count = Path(folder), int(papers)
    root.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    kinds = noise.integers(0, len(CLASSES), count)
    favourite = noise.random((len(CLASSES), int(words))) < 0.03
    has = (noise.random((count, int(words))) < 0.005) | (
        favourite[kinds] & (noise.random((count, int(words))) < 0.3)
    )
    with (root / "cora.content").open("w", encoding="utf-8") as content:
        for number in range(count):
            bits = "\t".join("01"[int(bit)] for bit in has[number])
            content.write(f"{number + 1000}\t{bits}\t{CLASSES[kinds[number]]}\n")
    with (root / "cora.cites").open("w", encoding="utf-8") as cites:
        for number in range(count):
            alike = np.flatnonzero(kinds == kinds[number])
            for other in noise.choice(alike, 2):
                cites.write(f"{other + 1000}\t{number + 1000}\n")


main(*sys.argv[1:])
