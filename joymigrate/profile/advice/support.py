"""What the chip does with a recorded operator, as detectors ask for it."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.profile import alternatives
from joymigrate.profile.capture import CapturedOperator
from joymigrate.profile.judge import SupportJudge
from joymigrate.profile.oplist.lists import OpList
from joymigrate.profile.support import Support, SupportStatus
from joymigrate.profile.table import EMPTY, CallSignature

WHOLE = (SupportStatus.NATIVE, SupportStatus.FUSED)


class ChipSupport:
    """Answers for one chip in one version, from its operator list."""

    def __init__(self, oplist: OpList, *, overloads: bool = True) -> None:
        self.judge = SupportJudge(oplist, overloads=overloads)
        self.alternatives = alternatives.load(oplist)

    def plain(self, operator: CapturedOperator) -> Support:
        """Without regard to types. A composite around it that the chip takes whole covers it."""
        for parent in operator.parents:
            found = self.judge.judge(parent, EMPTY).support
            if found.status in WHOLE:
                return found
        return self.judge.inner(self.judge.judge(operator.name, EMPTY)).support

    def instead(self, operator: CapturedOperator, support: Support) -> str:
        """What to use in place of an operator that the chip lacks; empty if nobody has said."""
        return self.alternatives.of(operator.op, support.alternative)

    def typed(self, operator: CapturedOperator) -> Support:
        """For the recorded types of its arguments."""
        return self.judge.judge(operator.name, signature(operator)).support

    def named_arguments(self, operator: CapturedOperator) -> Iterator[tuple[str, object]]:
        """Arguments with the names that torch's schema gives them."""
        ops = self.judge.oplist.resolver.table.ops
        schema = ops.get(operator.name.removeprefix("aten::"))
        names = [argument.name for argument in schema.arguments] if schema else []
        yield from zip(names, operator.args, strict=False)
        yield from operator.kwargs.items()


def signature(operator: CapturedOperator) -> CallSignature:
    """The arguments as the operator lists want them."""
    dtypes: list[str] = []
    dims: list[object] = []
    for value in (*operator.args, *operator.kwargs.values()):
        tensor = value if isinstance(value, dict) and "shape" in value else None
        dtypes.append(tensor["dtype"] if tensor else "")
        dims.append(tuple(tensor["shape"]) if tensor else None)
    return CallSignature(tuple(dtypes), tuple(dims))
