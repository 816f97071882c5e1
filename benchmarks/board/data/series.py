"""Hourly measurements of seven variables with dates: series.py FILE [ROWS]."""

import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np


def main(path: str, rows: str = "1200") -> None:
    """Waves with noise; the header is that of the public ETT files, the target column last."""
    noise = np.random.default_rng(0)
    hours = np.arange(int(rows))[:, None]
    values = np.sin(hours / (6 + np.arange(7))) + 0.1 * noise.standard_normal((int(rows), 7))
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    began = datetime(2016, 7, 1)
    with target.open("w", encoding="utf-8") as file:
        file.write("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n")
        for hour, row in enumerate(values):
            when = began + timedelta(hours=hour)
            file.write(f"{when:%Y-%m-%d %H:%M:%S}," + ",".join(f"{v:.4f}" for v in row) + "\n")


main(*sys.argv[1:])
