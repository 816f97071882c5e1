"""What a chip was measured to do, over what its documents say of one operator with one signature.

A row counts for the version of the chip's torch package that it was seen with, and for the dtype of
the first tensor. One with the same shapes comes first. What a chip refused in other shapes is taken
to be refused in this dtype, unless it ran this dtype in yet others; what it ran in other shapes is
not measured in these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joymigrate.chips import calibration
from joymigrate.language import Text
from joymigrate.profile.oplist.lists import OpList
from joymigrate.profile.support import OperatorVerdict, SupportStatus
from joymigrate.profile.table import CallSignature, tensor_dtypes

REFUSED = ("refused", "hung", "crashed")
SEEN = "{outcome} in {dtype} ({where})"
ELSEWHERE = "{outcome} in {dtype} with shapes {shapes}, not tried with these ({where})"


class Measured:
    """The calibration of one chip in one version, by operator and dtype."""

    def __init__(self, oplist: OpList) -> None:
        chip, version = oplist.chip, oplist.version
        self.rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in calibration.load(chip.name).rows.values():
            if calibration.seen_with(row, chip.package, version):
                key = (calibration.base(str(row["op"])), str(row["dtype"]))
                self.rows.setdefault(key, []).append(row)

    def apply(self, verdict: OperatorVerdict, signature: CallSignature) -> OperatorVerdict:
        """The verdict as the chip was seen to behave; unchanged where nobody tried."""
        first = next(tensor_dtypes(signature), None) if self.rows else None
        if first is None:
            return verdict
        rows = self.rows.get((calibration.base(verdict.op), first[1]), ())
        if not rows:
            return verdict
        row = min(rows, key=lambda one: rank(one, signature))
        alike = [one for one in rows if same_shapes(one, signature) is not False] or rows
        deviations = [name for one in alike for name in one["deviations"]]
        return self.seen(verdict, row, deviations, same_shapes(row, signature))

    def seen(
        self,
        verdict: OperatorVerdict,
        row: Mapping[str, Any],
        deviations: list[str],
        alike: bool | None,
    ) -> OperatorVerdict:
        """What one row makes of a verdict; `alike`: its shapes are those of the call."""
        outcome, support = str(row["found"]["outcome"]), verdict.support
        where, dtype = calibration.provenance(row), str(row["dtype"])
        words = ", ".join(dict.fromkeys([outcome, *deviations]))
        shapes = calibration.shape_words(row)
        note = Text(SEEN if alike is not False else ELSEWHERE, outcome=words, dtype=dtype,
                    where=where, shapes=shapes)  # fmt: skip
        told = replace(support, note=note, grade=str(row["grade"]), source=where)
        if outcome in REFUSED:
            return replace(
                verdict, support=replace(told, status=SupportStatus.MISSING), opens=False
            )
        if outcome == "fallback":
            return replace(
                verdict, support=replace(told, status=SupportStatus.CPU_FALLBACK), opens=False
            )
        if outcome != "accepted":
            return verdict
        if (
            support.status is SupportStatus.MISSING
            and support.dtypes
            and dtype not in support.dtypes
        ):
            return replace(verdict, support=replace(told, status=SupportStatus.NATIVE))
        if not support.status.supported:
            return verdict  # another overload may have run
        if alike is False:  # it ran in other shapes: that is no measurement of this call
            return replace(verdict, support=replace(told, grade=support.grade))
        if not deviations:
            told = replace(told, note=support.note, source=support.source)
        return replace(verdict, support=told)


def rank(row: Mapping[str, Any], signature: CallSignature) -> tuple[bool, bool, bool]:
    """What comes first: the call's shapes, plain strides, and in other shapes what ran."""
    alike = same_shapes(row, signature)
    refused = alike is False and str(row["found"]["outcome"]) in REFUSED
    return alike is not True, str(row["layout"]) != "contiguous", refused


def same_shapes(row: Mapping[str, Any], signature: CallSignature) -> bool | None:
    """Whether a row was seen with the shapes of a call; None where one of the two is not known."""
    inputs = row.get("inputs")
    dims = [
        signature.dims[place] if place < len(signature.dims) else None
        for place, dtype in enumerate(signature.dtypes) if dtype
    ]  # fmt: skip
    if not inputs or not dims or None in dims:
        return None
    return [list(one) for one in inputs] == [flat(one) for one in dims][: len(inputs)]


def flat(dims: Any) -> Any:
    """Lengths as a list."""
    return list(dims) if isinstance(dims, (list, tuple)) else dims
