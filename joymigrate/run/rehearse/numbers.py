"""Watches the numbers of a rehearsal: the first results that are not finite though everything that
went in was, and additive attention biases that became boolean masks.

Silent over -inf where it masks: an argument that is -inf, or close to the least value of its
dtype, makes more of it on purpose. It knows nothing of arguments that an operator overwrote, other
than that an earlier result at the same place was not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.language import Text
from joymigrate.run.rehearse import aliases
from joymigrate.run.rehearse.callsite import BACKWARD, call_site
from joymigrate.run.rehearse.field_reports import Reported, Reports
from joymigrate.run.rehearse.operator import RehearsedOperator
from joymigrate.run.rehearse.record import RehearsalRecord
from joymigrate.run.rehearse.vendor import named_arguments

INTEGERS = (torch.int32, torch.int64)
MEASURES: Mapping[str, Callable[[Tensor], Tensor]] = {"largest": torch.amax, "total": torch.sum}
MEASURED = 65536  # elements
REAL = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# They move numbers or choose among them: what comes out went in.
MOVING = frozenset(
    """_cat _copy_from _reshape_alias_copy _to_copy alias_copy broadcast_tensors cat clamp clamp_
    clone contiguous copy copy_ embedding expand_copy fill fill_ flip full full_like gather index
    index_put index_put_ index_select masked_fill masked_fill_ masked_select max maximum min
    minimum new_full npu_top_k_top_p ones ones_like permute_copy relu relu_ repeat roll scatter
    scatter_ select_copy slice_copy sort stack topk transpose_copy tril tril_ triu triu_ where
    zero_ zeros zeros_like
    """.split()  # noqa: SIM905
)
NARROWING = ("_to_copy", "copy_", "_copy_from", "_npu_dtype_cast")  # may overflow as they move
POLES = frozenset(
    """div div_ log log_ log10 log1p log2 pow pow_ reciprocal reciprocal_ rsqrt rsqrt_ true_divide
    """.split()  # noqa: SIM905
)
UNSCALES = "aten::_amp_foreach_non_finite_check_and_unscale_"  # by it a GradScaler looks itself
MOST = 10  # lines that are told
REMEMBERED = 4096  # places of results that are not finite
ATTENTION = "attention"
NOT_FINITE = "not_finite"
OVERFLOW = (
    "float16 ends at 65504: compute here in bfloat16 or float32, or scale the values down; where a "
    "chip saturates, it goes on with 65504 and says nothing"
)
LOOK = "look at what goes in here: a division by 0, inf minus inf, a root or logarithm below 0"
BIAS = (
    "an additive bias became a boolean mask: its entries besides 0 and -inf are lost, and the "
    "attention gives other numbers than with the bias"
)
LOW = -9e3  # masks: -1e4, which bfloat16 rounds to -9984
INVERTED = "True in atten_mask means left out, and here it means kept: the attention sees the rest"
INVERTED_REMEDY = (
    "invert the mask once: atten_mask is True where scaled_dot_product_attention has False"
)
BIAS_REMEDY = "keep the bias in floating point; only masks of 0 and -inf may become boolean"


class NumberWatch:
    """What one process has seen. `look` is called with the aliases of every outermost call."""

    def __init__(self, record: RehearsalRecord, reports: Reports) -> None:
        self.record = record
        self.reports = reports
        self.spoiled: dict[int, None] = {}
        self.biases: dict[int, str] = {}
        self.kept: dict[int, tuple[str, bool]] = {}  # masks of additive ones: is True kept?
        self.held: list[tuple[str, str, Text]] = []  # of a backward pass
        record.sources.append(self.settle)

    def look(
        self,
        operator: RehearsedOperator,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        back: Any,
    ) -> None:
        """Look at the results of a call; `back` are the same on the device."""
        if ATTENTION in operator.base:
            self.look_for_biases(args, kwargs)
            self.look_for_inversion(operator, args, kwargs)
        if type(result) is Tensor and type(back) is Tensor:
            self.look_at(operator, args, kwargs, result, back.data_ptr())
        elif isinstance(result, (tuple, list)) and isinstance(back, (tuple, list)):
            for one, place in zip(result, back, strict=False):
                if isinstance(one, Tensor) and isinstance(place, Tensor):
                    self.look_at(operator, args, kwargs, one, place.data_ptr())

    def look_at(
        self,
        operator: RehearsedOperator,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        made: Tensor,
        place: int,
    ) -> None:
        """Look at one result, which lies at `place`."""
        dtype = made.dtype
        if dtype not in REAL:
            if dtype is torch.bool:
                self.follow_biases(args, kwargs, made, place)
            return
        if operator.views or not made.numel():
            return
        if operator.base in MOVING and (
            dtype is not torch.float16 or operator.base not in NARROWING
        ):
            return
        least, most = (one.item() for one in torch.aminmax(made.detach()))
        if not (math.isfinite(least) and math.isfinite(most)):
            self.note(operator, args, kwargs, made, (place, least, most))

    def note(
        self,
        operator: RehearsedOperator,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        made: Tensor,
        found: tuple[int, float, float],
    ) -> None:
        """A result is not finite: tell where it began. `found` are place, least and most."""
        place, least, most = found
        known = place in self.spoiled
        if len(self.spoiled) >= REMEMBERED:
            self.spoiled.clear()
        self.spoiled[place] = None
        given = list(list_values([*args, *kwargs.values()]))
        if any(isinstance(one, float) and not math.isfinite(one) for one in given):
            return
        tensors = [one for one in given if isinstance(one, Tensor) and one.dtype in REAL]
        before = [one for one in tensors if one.data_ptr() != place and one.numel()]
        if known and len(before) < len(tensors):  # written over what was not finite already
            return
        ranges = [tuple(end.item() for end in torch.aminmax(one.detach())) for one in before]
        if not all(math.isfinite(end) for ends in ranges for end in ends):
            return
        deepest = torch.finfo(made.dtype).min / 2
        masks = math.isfinite(most) and any(ends[0] <= deepest for ends in ranges)
        unlike = made.dtype is not torch.float16 and not math.isnan(least) and math.isfinite(most)
        pole = operator.base in POLES and not math.isnan(least) and made.dtype is not torch.float16
        if masks or unlike or pole:
            return
        largest = max((abs(end) for ends in ranges for end in ends), default=0.0)
        text = Text(
            "{op} gives {what} in {dtype}, though all that goes in is finite (largest {largest})",
            op=operator.name,
            what="nan" if math.isnan(least) else "inf" if math.isinf(most) else "-inf",
            dtype=str(made.dtype).removeprefix("torch."),
            largest=f"{largest:.4g}",
        )
        self.tell(operator, text, made.dtype, unwritten=math.isnan(least))

    def tell(
        self, operator: RehearsedOperator, text: Text, dtype: torch.dtype, *, unwritten: bool
    ) -> None:
        """Note it at the program's line; of a backward pass once it is known that the program's
        own scaler does not look for it."""
        where = call_site()
        row = self.reports.of_numbers(operator.base) if unwritten else None
        remedy = OVERFLOW if dtype is torch.float16 else LOOK
        if where == BACKWARD and dtype is torch.float16:
            self.held.append((where, remedy, text))
        elif row is not None:
            self.report(row, operator)
        elif sum(one["trap"] == NOT_FINITE for one in self.record.traps.values()) < MOST:
            self.record.trap(NOT_FINITE, where, remedy, text)

    def ask_reports(
        self,
        operator: RehearsedOperator,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        captured: bool,
    ) -> None:
        """What people reported of such a call. Besides its arguments a row may ask whether the call
        is `captured` by a graph, and for `largest_x` or `total_x` of the integers in an argument x.
        """
        rows = self.reports.rows[operator.base]
        call = {**named_arguments(operator, args, kwargs), "captured": captured}
        names = (one.name for one in operator.overload._schema.arguments)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in {name for row in rows if row.when is not None for name in row.when.names}:
            kind, _, of = name.partition("_")
            if kind in MEASURES and isinstance(given.get(of), Tensor):
                call[name] = measure(MEASURES[kind], given[of])
        for row in self.reports.of_call(operator.base, call):
            self.report(row, operator)

    def report(self, row: Reported, operator: RehearsedOperator) -> None:
        """What people reported of this call."""
        text = Text("{op}: {problem}", op=operator.name, problem=Text(row.problem))
        if row.versions:
            text = Text(
                "{text}; reported of CANN {versions} alone", text=text, versions=row.versions
            )
        self.record.trap(
            row.name, call_site(), row.action, text, grade="reported", source=row.source
        )

    def settle(self, record: RehearsalRecord) -> None:
        """At the end: what a backward pass made, where no scaler looked at it."""
        if record.finished and not record.calls[UNSCALES]:
            for where, remedy, text in self.held[:1]:
                record.trap(NOT_FINITE, where, remedy, text)
            self.held.clear()

    def follow_biases(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], made: Tensor, place: int
    ) -> None:
        """A boolean result: of an additive bias, or of what was one."""
        values = list_values([*args, *kwargs.values()])
        given = [one for one in values if isinstance(one, Tensor) and one.data_ptr() != place]
        self.biases.pop(place, None)
        self.kept.pop(place, None)
        if len(given) != 1 or not made.numel() or given[0].numel() != made.numel():
            return
        source = given[0]
        if source.dtype in REAL and source.dim() >= 2 and is_bias(source):
            self.biases[place] = call_site()
        elif source.dtype is torch.bool and source.data_ptr() in self.biases:
            self.biases[place] = self.biases[source.data_ptr()]
        elif (meaning := self.meaning_of(source)) is not None:
            left_out, where, kept = meaning
            if torch.equal(made, left_out):
                self.kept[place] = (where, kept)
            elif torch.equal(made, ~left_out):
                self.kept[place] = (where, not kept)

    def meaning_of(self, source: Tensor) -> tuple[Tensor, str, bool] | None:
        """Of a mask as booleans: these, where it was made, and whether True is kept."""
        if source.dtype is torch.bool and source.data_ptr() in self.kept:
            return (source, *self.kept[source.data_ptr()])
        if source.dtype in REAL and source.dim() >= 2:
            low = source.detach() <= LOW
            if bool(low.any()) and not bool(low.all()):
                return low, call_site(), False
        return None

    def look_for_inversion(
        self, operator: RehearsedOperator, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """A mask of the package's attention (True is left out) in which True means kept: made of
        an additive one, or one that leaves out the past and itself and keeps the future."""
        names = (one.name for one in operator.overload._schema.arguments)
        mask = {**dict(zip(names, args, strict=False)), **kwargs}.get("atten_mask")
        if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or mask.dim() < 2:
            return
        where, kept = self.kept.get(mask.data_ptr(), (call_site(), is_kept_past(mask)))
        if kept:
            self.record.trap("inverted_mask", where, INVERTED_REMEDY, INVERTED)

    def look_for_biases(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An attention that is given one of them as its mask."""
        for one in list_values([*args, *kwargs.values()]):
            if isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8):
                where = self.biases.get(one.data_ptr())
                if where is not None:
                    self.record.trap("bias_made_boolean", where, BIAS_REMEDY, BIAS)


def measure(kind: Callable[[Tensor], Tensor], given: Tensor) -> int | None:
    """A figure of a small tensor of integers on the device; None of any other."""
    if given.dtype not in INTEGERS or not 0 < given.numel() <= MEASURED:
        return None
    return int(kind(aliases.make_alias(given)).item())


def is_bias(given: Tensor) -> bool:
    """Whether a tensor holds more than 0 and what masks: finite values that are not very low."""
    values = given.detach().float()
    return bool(((values != 0) & (values > LOW) & values.isfinite()).any())


def is_kept_past(mask: Tensor) -> bool:
    """Whether True lies on and below the diagonal alone, beginning with the first entry."""
    rows, columns = mask.shape[-2:]
    if rows != columns or rows < 3:
        return False
    first = mask.detach().reshape(-1, rows, columns)[0]
    return bool(first[0, 0] and first[1:, 0].all()) and not bool(first.triu(1).any())


def list_values(values: Sequence[Any]) -> Iterator[Any]:
    """Arguments, with those in lists."""
    for one in values:
        if isinstance(one, (list, tuple)):
            yield from list_values(one)
        else:
            yield one
