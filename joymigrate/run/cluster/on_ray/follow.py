"""Waits for jobs on Ray and passes all of their output on."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Sequence
from typing import Any

from joymigrate.run.cluster.on_ray.connect import ControllerClient

POLL_S = 0.3
PIECE = 1 << 20  # bytes of one answer
OVER = ("done", "failed", "cancelled")
Talk = Callable[[list[str]], None]


class OutputReader:
    """One pod's output: what is new since the last look, in whole lines."""

    def __init__(self, captain: ControllerClient, job: str, attempt: int, rank: int) -> None:
        self.captain = captain
        self.job = job
        self.attempt = attempt
        self.rank = rank
        self.at = 0
        self.rest = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def new(self, last: bool = False) -> list[str]:
        """Lines that have come; with `last` also the one that has no end."""
        lines: list[str] = []
        while True:
            piece = self.captain.ask("read", self.job, self.rank, self.at, PIECE, self.attempt)
            if piece.data and piece.start > self.at:
                lines.append(f"[{piece.start - self.at} bytes are gone: the output was too long]")
            lines += self._lines(piece.data)
            self.at = max(self.at, piece.start + len(piece.data)) if piece.data else self.at
            if not piece.data or self.at >= piece.end:
                break
        if last and self.rest:
            lines.append(self.rest)
            self.rest = ""
        return lines

    def _lines(self, data: bytes) -> list[str]:
        text = (self.rest + self.decoder.decode(data)).replace("\r\n", "\n")
        half = "\r" if text.endswith("\r") else ""  # its other half may be on its way
        *lines, rest = text.removesuffix(half).replace("\r", "\n").split("\n")
        self.rest = rest + half
        return lines


def whole(captain: ControllerClient, job: str, attempt: int = 0) -> list[list[str]]:
    """All output of one attempt that is kept, as lines by rank."""
    row = captain.ask("status", [job])["jobs"]
    if not row:
        captain.ask("logs", job, 0)  # says that there is no such job
    number = attempt or row[0]["attempt"]
    ranks = range(row[0]["world"])
    return [OutputReader(captain, job, number, rank).new(last=True) for rank in ranks]


def to_the_end(captain: ControllerClient, names: Sequence[str], talk: Talk) -> Any:
    """Poll until all named jobs are over or can never start; returns the last status."""
    readers: dict[tuple[str, int], list[OutputReader]] = {}
    waits: dict[str, str] = {}
    while True:
        answer = captain.ask("status", list(names))
        for row in answer["jobs"]:
            name, attempt = row["job"], row["attempt"]
            if row["state"] == "waiting" and waits.get(name) != row["reason"]:
                waits[name] = row["reason"]
                talk([f"{name} waits: {row['reason']}"])
            if attempt and (name, attempt) not in readers:
                readers[name, attempt] = [
                    OutputReader(captain, name, attempt, rank) for rank in range(row["world"])
                ]
            for key in [key for key in readers if key[0] == name]:
                over = key[1] != attempt or row["state"] != "running"
                for reader in readers[key]:
                    talk([f"{name}[{reader.rank}] {line}" for line in reader.new(last=over)])
                if over and key[1] != attempt:
                    del readers[key]
        stuck = [r for r in answer["jobs"] if r["state"] == "waiting" and r["permanent"]]
        if all(row["state"] in OVER or row in stuck for row in answer["jobs"]):
            return answer
        time.sleep(POLL_S)
