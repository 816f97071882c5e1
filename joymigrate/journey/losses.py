"""Loss curves out of what a program prints or writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
# `loss 1.23`, `loss: 1.23`, `loss=1.23`, `train_loss 1.23`, `'loss': 1.23`.
LOSS = re.compile(rf"(?<![a-z])(?:train[_ ])?loss['\"]?\s*[:=]?\s*{NUMBER}", re.IGNORECASE)
STEP = re.compile(r"(?<![a-z])(?:step|iter(?:ation)?)['\"]?\s*[:=#]?\s*(\d+)", re.IGNORECASE)


def losses(lines: Iterable[str]) -> list[tuple[int, float]]:
    """(step, loss) of every line that names a loss; without a step they are counted."""
    found: list[tuple[int, float]] = []
    for line in lines:
        loss = LOSS.search(line)
        if loss is None:
            continue
        step = STEP.search(line)
        found.append((int(step.group(1)) if step else len(found), float(loss.group(1))))
    return found


def write_curve(log: Path, target: Path) -> int:
    """Write the losses of a program's output as `{"step", "loss"}` lines; returns how many."""
    with open(log, encoding="utf-8", errors="replace") as lines:
        curve = losses(lines)
    text = "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in curve)
    target.write_text(text, encoding="utf-8")
    return len(curve)
