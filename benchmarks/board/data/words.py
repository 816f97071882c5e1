"""Text files of known words, one sentence a line: words.py [--first LINE] (FILE LINES) …

Programs of characters want to know those that they begin with: `--first` puts them on top.
"""

import random
import sys
from pathlib import Path

WORDS = "the quick brown fox jumps over a lazy dog and runs away from all of them".split()  # noqa: SIM905


def main(*given: str) -> None:
    """Write the files."""
    chosen, top = random.Random(1), []
    if given[0] == "--first":
        top, given = [given[1]], given[2:]
    for path, lines in zip(given[::2], given[1::2], strict=True):
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        rows = [" ".join(chosen.choice(WORDS) for _ in range(12)) for _ in range(int(lines))]
        target.write_text("\n".join([*top, *rows]) + "\n", encoding="utf-8")


main(*sys.argv[1:])
