"""Which cause doctor names first for each paste of thirty.yaml: `python thirty.py [-v]`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from joymigrate.schema import read_yaml


def main() -> None:
    """One run of the command per paste; the table goes to stdout."""
    ends: Counter[str] = Counter()
    for row in read_yaml(Path(__file__).with_suffix(".yaml")):
        with tempfile.TemporaryDirectory() as folder:
            paste = Path(folder) / "paste.txt"
            paste.write_text(row["paste"], encoding="utf-8")
            command = [sys.executable, "-m", "joymigrate", "doctor", "--to", "ascend"]
            command += ["--env", str(paste), "--format", "json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        # a paste in which the command finds nothing that it knows is an error of its own
        said = json.loads(done.stdout or '{"next": "unrecognised", "findings": []}')
        first = said["next"] or "nothing"
        finding = next((one for one in said["findings"] if one["cause"] == first), {})
        words = " ".join(str(part) for part in finding.values())
        if first in row["expect"] or ("words" in row and re.search(row["words"], words)):
            end = "right" if first not in ("unrecognised", "nothing") else "silent"
        else:
            end = "silent" if first in ("unrecognised", "nothing") else "other"
        ends[end] += 1
        print(end, row["thread"], f"said {first}", *row["expect"], sep="\t")
        if "-v" in sys.argv and end != "right":
            print("   ", words)
    print(dict(ends))


if __name__ == "__main__":
    main()
