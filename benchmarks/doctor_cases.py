"""First diagnoses of recorded public failures: how many name the expected cause first.

python -m benchmarks.doctor_cases            # both halves and the healthy environments
"""

from __future__ import annotations

import sys
from pathlib import Path

from joymigrate import chips
from joymigrate.environment import diagnose
from joymigrate.schema import read_yaml

FOLDER = Path(__file__).parents[1] / "tests" / "samples" / "environments"


def main() -> int:
    """Print a line per miss, and a count per file; 1 with a miss."""
    chip, misses = chips.get("ascend"), 0
    for name in ("known", "held", "later", "fresh", "newest", "further", "drawn", "healthy"):
        path = FOLDER / f"{name}.yaml"
        rows = read_yaml(path) if path.is_file() else []
        good = 0
        for row in rows:
            said = diagnose(row["environment"], chip)
            first = said.next.cause if said.next else None
            fits = first in row["expect"] if row["expect"] else first is None
            good += fits
            if not fits:
                print(f"  {name}: {row['thread']}: {first}, expected {row['expect']}")
        misses += len(rows) - good
        print(f"{name}: {good} of {len(rows)}")
    return int(misses > 0)


if __name__ == "__main__":
    sys.exit(main())
