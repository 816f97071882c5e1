"""How many devices the simulated machine gets: as many as the program is started on.

The original runs on one GPU, or on a CPU. A program that takes every card it sees would be another
program on eight of them, so one is the default; launchers say how many processes they start, and
sources sometimes name a card.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun", "launch", ".sh")
NAMED = re.compile(
    r"(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus|num[-_]devices|(?<![-\w])-np|"
    r"(?<![-\w])-n|world[-_]size|n?gpus?|devices)[=\s]+['\"]?(\d+)\b"
)
# `"cuda:1"`, `f"{device_type()}:1"` as it is rewritten, `.cuda(1)`, `set_device(1)`.
CARD = re.compile(
    r"[\"'](?:[a-z]{3,6}|\{[^{}]*\}):(\d{1,2})[\"']|\.(?:cuda|device|set_device)\((\d{1,2})\)"
)
GIVEN = re.compile(r"\bcuda:(\d{1,2})\b")
VISIBLE = re.compile(r"CUDA_VISIBLE_DEVICES=['\"]?([\d,]+)")
MOST = 64


def devices_of(entry: Sequence[str], project: Path) -> int | None:
    """The number of devices; None where a launcher decides and does not say."""
    text = " ".join(entry)
    for word in entry:
        if word.endswith(".sh") and (project / word).is_file():
            text += " " + (project / word).read_text(encoding="utf-8", errors="replace")
    named = [int(number) for number in NAMED.findall(text)]
    named += [int(number) + 1 for number in GIVEN.findall(text)]
    named += [len(cards.split(",")) for cards in VISIBLE.findall(text)]
    if named:
        return min(max(1, *named), MOST)
    if any(sign in word for word in entry for sign in LAUNCHERS):
        return None
    return max([1, *(number + 1 for number in cards_in(entry, project))])


def cards_in(entry: Sequence[str], project: Path) -> list[int]:
    """The cards that the program's own file names."""
    scripts = [project / word for word in entry if word.endswith(".py")]
    return [
        int(one or other)
        for script in scripts
        if script.is_file()
        for one, other in CARD.findall(script.read_text(encoding="utf-8", errors="replace"))
        if int(one or other) < MOST
    ]
