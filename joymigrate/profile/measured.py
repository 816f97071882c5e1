"""What a chip was measured to do, over what its documents say of one operator with one signature.

A row counts for the version of the chip's torch package that it was seen with, and for the dtype of
the first tensor. Shapes are not compared: a chip that refuses the kit's shape is taken to refuse
the dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joymigrate.chips import calibration
from joymigrate.language import Text
from joymigrate.profile.oplist.lists import OpList
from joymigrate.profile.support import Status, Verdict
from joymigrate.profile.table import Signature, tensor_dtypes

REFUSED = ("refused", "hung", "crashed")
SEEN = "{outcome} in {dtype} ({where})"


class Measured:
    """The calibration of one chip in one version, by operator and dtype."""

    def __init__(self, oplist: OpList) -> None:
        chip, version = oplist.chip, oplist.version
        self.rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in calibration.load(chip.name).rows.values():
            if calibration.seen_with(row, chip.package, version):
                key = (calibration.base(str(row["op"])), str(row["dtype"]))
                self.rows.setdefault(key, []).append(row)

    def apply(self, verdict: Verdict, signature: Signature) -> Verdict:
        """The verdict as the chip was seen to behave; unchanged where nobody tried."""
        first = next(tensor_dtypes(signature), None) if self.rows else None
        if first is None:
            return verdict
        rows = self.rows.get((calibration.base(verdict.op), first[1]), ())
        for row in sorted(rows, key=lambda one: str(one["layout"]) != "contiguous"):
            return self.seen(verdict, row, [name for one in rows for name in one["deviations"]])
        return verdict

    def seen(self, verdict: Verdict, row: Mapping[str, Any], deviations: list[str]) -> Verdict:
        """What one row makes of a verdict."""
        outcome, support = str(row["found"]["outcome"]), verdict.support
        where, dtype = calibration.provenance(row), str(row["dtype"])
        words = ", ".join(dict.fromkeys([outcome, *deviations]))
        note = Text(SEEN, outcome=words, dtype=dtype, where=where)
        told = replace(support, note=note, grade=str(row["grade"]), source=where)
        if outcome in REFUSED:
            return replace(verdict, support=replace(told, status=Status.MISSING), opens=False)
        if outcome == "fallback":
            return replace(verdict, support=replace(told, status=Status.CPU_FALLBACK), opens=False)
        if outcome != "accepted":
            return verdict
        if support.status is Status.MISSING and support.dtypes and dtype not in support.dtypes:
            return replace(verdict, support=replace(told, status=Status.NATIVE))
        if not support.status.supported:
            return verdict  # another overload may have run
        if not deviations:
            told = replace(told, note=support.note, source=support.source)
        return replace(verdict, support=told)
