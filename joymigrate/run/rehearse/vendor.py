"""The vendor's own C++ kernels, run for what they check and for the form of their results.

They go down to the chip call, where the simulated runtime counts the kernel and computes nothing.
What an operator writes in place is put back afterwards, so that the pass leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse import constraints, generators
from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.constraints import KINDS, NOBODY
from joymigrate.run.rehearse.limits import Limits
from joymigrate.run.rehearse.operator import RehearsedOperator
from joymigrate.run.rehearse.record import RehearsalRecord
from joymigrate.run.rehearse.refs.precondition import PreconditionError
from joymigrate.run.rehearse.shim import Shim

AGREES = ()  # the plan of a combination whose results have the form of the CPU's
OVERLAPS = 1  # of torch's answers: no, yes, too hard to say
MASKS = (torch.bool, torch.uint8)
UNUSUAL_REMEDY = "no kernel of the vendor's tests takes this: compare with the kernel's document"
BASE_FORMATS = (-1, 0, 1, 2, 3, 27, 30, 32, 35)  # NCHW, NHWC, ND, …: plain strided memory


@dataclass(frozen=True, slots=True)
class VendorPass:
    """What a pass through the vendor's C++ gave: whether it ran, and its result tensors."""

    ran: bool
    results: tuple[Tensor | None, ...] | None = None
    kernels: tuple[str, ...] = ()  # that the chip would have run
    refusals: tuple[str, ...] = ()  # keys of the record's
    judge: str = NOBODY  # which kinds of limits were compared
    forms: tuple[str, ...] = ()  # the same with their arguments


class VendorKernels:
    """Calls the kernels that the package registered, before they were overridden."""

    def __init__(
        self, shim: Shim, record: RehearsalRecord, limits: Limits, *, strict: bool = False
    ) -> None:
        self.shim = shim
        self.record = record
        self.limits = limits
        self.strict = strict
        self.keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

    def call(
        self,
        operator: RehearsedOperator,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        written: Sequence[Any],
        index: int,
    ) -> VendorPass:
        """Run the vendor's C++ for this call. Its errors are the program's errors."""
        if operator.vendor is None or depends_on_data(operator, args, kwargs):
            return VendorPass(False)
        memory = [plain_memory(tensor) for tensor in flat_tensors(written)]
        before = [(tensor, tensor.clone()) for tensor in memory]
        generator = generator_of(operator, args, kwargs, index)
        state = generator.get_state() if generator is not None else None
        args, kwargs = with_tensors(operator, args, kwargs)
        asked = self.shim.asked()
        self.shim.set_tracing(1)
        start = self.shim.forms_length()
        try:
            result = operator.vendor.call_boxed(self.keys, *args, **kwargs)
        finally:
            self.shim.set_tracing(0)
            for tensor, saved in before:
                if tensor.size() == saved.size():
                    tensor.copy_(saved)
            if generator is not None and state is not None:
                generator.set_state(state)
        kernels = tuple(self.shim.since(asked))
        forms = self.shim.forms(start)
        refusals, compared = self.refuse(operator, forms, args, kwargs)
        judge = " ".join(kind for kind in KINDS if kind in compared) or NOBODY
        if operator.writes:
            return VendorPass(True, None, kernels, refusals, judge, tuple(forms))
        operator.on_host |= {
            number
            for number, item in enumerate(list_results(result))
            if isinstance(item, Tensor) and item.device.type == "cpu"
        }
        results = tuple(self.own_memory(item, args, kwargs) for item in list_results(result))
        return VendorPass(True, results, kernels, refusals, judge, tuple(forms))

    def refuse(
        self,
        operator: RehearsedOperator,
        forms: Sequence[str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[tuple[str, ...], frozenset[str]]:
        """Note what the tables say that the chip would refuse; under `--strict` raise it.
        Also which kinds of limits were compared."""
        keys = []
        compared, found = self.limits.judged(forms)
        own, broken = self.limits.refused_operator(
            operator.name, named_arguments(operator, args, kwargs)
        )
        compared |= own
        for refusal in [*found, *([broken] if broken else [])]:
            where = call_site()
            if refusal.grade == constraints.GENERAL:
                self.record.trap("unusual_arguments", where, UNUSUAL_REMEDY, refusal.message)
                continue
            keys.append(
                self.record.refuse(
                    operator.name,
                    refusal.kernel,
                    refusal.message,
                    dtype=refusal.dtype,
                    where=where,
                    source=refusal.source,
                    grade=refusal.grade,
                )
            )
            if self.strict:
                self.record.checks[" ".join(k for k in KINDS if k in compared) or NOBODY] += 1
                raise self.error_of(keys[-1])
        return tuple(keys), compared

    def refuse_numbers(
        self, operator: RehearsedOperator, broken: PreconditionError
    ) -> RuntimeError:
        """Note a refusal for the numbers of a call; what the chip raises of it."""
        key = self.record.refuse(
            operator.name, operator.base, broken.message, dtype="", where=call_site(),
            source=broken.source, grade=constraints.DOCUMENTED,
        )  # fmt: skip
        return self.error_of(key)

    def error_of(self, key: str) -> RuntimeError:
        """What the chip raises of a call that it refuses; `key` is one of the record's."""
        row = self.record.refusals[key]
        return RuntimeError(
            f"rehearsal: {row['message']} ({row['op']}); the chip refuses this call "
            f"(documented: {row['source']}; {call_site()})"
        )

    def own_memory(self, result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
        """A result tensor that can be filled: plain memory that is no argument's."""
        if not isinstance(result, Tensor) or result.get_device() < 0:
            return None
        if result.layout is not torch.strided:
            return None
        import torch_npu

        if torch_npu.get_npu_format(result) not in BASE_FORMATS:
            return None
        address = result.untyped_storage().data_ptr()
        for tensor in flat_tensors([*args, *kwargs.values()]):
            if address and tensor.untyped_storage().data_ptr() == address:
                return None
        return result

    def compare(
        self, operator: RehearsedOperator, result: Any, passed: VendorPass, pairs: Any
    ) -> tuple[tuple[torch.dtype, tuple[int, ...]] | None, ...]:
        """The plan for later calls: per result, dtype and strides where the vendor's differ."""
        if passed.results is None:
            return AGREES
        plan: list[tuple[torch.dtype, tuple[int, ...]] | None] = []
        for number, (ours, theirs) in enumerate(
            zip(list_results(result), passed.results, strict=False)
        ):
            plan.append(self.form(operator, number, ours, theirs))
        return tuple(plan) if any(plan) else AGREES

    def form(
        self, operator: RehearsedOperator, number: int, ours: Any, theirs: Tensor | None
    ) -> tuple[torch.dtype, tuple[int, ...]] | None:
        """dtype and strides of one result where they differ from ours; differences are noted."""
        if theirs is None or not isinstance(ours, Tensor):
            return None
        if ours.size() != theirs.size():
            self.note(
                operator, number, f"shape {list(theirs.size())}, on the CPU {list(ours.size())}"
            )
            return None
        if ours.dtype is theirs.dtype and ours.stride() == theirs.stride():
            return None
        if ours.dtype is not theirs.dtype:
            self.note(operator, number, f"{theirs.dtype}, on the CPU {ours.dtype}")
        return theirs.dtype, tuple(theirs.stride())

    def note(self, operator: RehearsedOperator, number: int, text: str) -> None:
        """One difference between the vendor's results and the CPU's, for the report."""
        self.record.differences.setdefault(f"{operator.name} result {number}", text)


def plain_memory(tensor: Tensor) -> Tensor:
    """What a tensor lies on; itself, unless some of its elements share a place (`expand`)."""
    if torch._debug_has_internal_overlap(tensor) != OVERLAPS:
        return tensor
    last = sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,))


def depends_on_data(
    operator: RehearsedOperator, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether the form of the results depends on more than the forms of the arguments."""
    if not operator.indexed:
        return operator.data_dependent
    indices = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]
    return any(tensor.dtype in MASKS for tensor in flat_tensors(indices))


def generator_of(
    operator: RehearsedOperator, args: Sequence[Any], kwargs: dict[str, Any], index: int
) -> torch.Generator | None:
    """The generator that a call of a random operator draws from."""
    if not operator.random:
        return None
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)]
    return given[0] if given else generators.device_generator(index)


def with_tensors(
    operator: RehearsedOperator, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Numbers that stand for tensors (`x + 1`) as tensors.

    A kernel in Python gets them as numbers; the vendor's takes tensors only. They get the dtype of
    the result, so that they count as little in type promotion as the number did.
    """
    numbers = (int, float, bool, complex)
    if not any(type(value) in numbers for value in (*args, *kwargs.values())):
        return args, kwargs
    like = next(iter(flat_tensors(args)), None)

    def made(place: int | str, value: Any) -> Any:
        if type(value) not in numbers or place not in operator.tensors:
            return value
        try:
            dtype = torch.result_type(like, value) if like is not None else None
            return torch.tensor(value, dtype=dtype, device="cpu")
        except (RuntimeError, OverflowError):
            return torch.tensor(value, device="cpu")

    return (
        [made(place, value) for place, value in enumerate(args)],
        {name: made(name, value) for name, value in kwargs.items()},
    )


def named_arguments(
    operator: RehearsedOperator, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by their names in the schema, tensors as constraints name them."""
    declared = operator.overload._schema.arguments
    found = {one.name: one.default_value for one in declared}
    found |= {**dict(zip((one.name for one in declared), args, strict=False)), **kwargs}
    if "input" in found:  # the package registers every `self` under that name
        found.setdefault("self", found["input"])
    return {name: plain_value(value) for name, value in found.items()}


def plain_value(value: Any) -> Any:
    """A tensor without its numbers; anything else as it is."""
    if isinstance(value, Tensor):
        return constraints.TensorArgument(
            str(value.dtype).removeprefix("torch."), tuple(value.shape), format_of(value),
            contiguous=value.layout != torch.strided or value.is_contiguous(),
        )  # fmt: skip
    if isinstance(value, (list, tuple)):
        made = [plain_value(one) for one in value]
        tensors = bool(made) and all(isinstance(one, constraints.TensorArgument) for one in made)
        return constraints.Tensors(made) if tensors else tuple(made)
    return value


def format_of(value: Tensor) -> str:
    """The chip's own format of a tensor; ND of all whose memory is plain, and of those that torch
    makes around raw memory (to write a storage): the package tells no format of them."""
    if value.get_device() < 0 or value.layout is not torch.strided:
        return "ND"
    import torch_npu

    try:
        found = torch_npu.get_npu_format(value)
    except RuntimeError:
        return "ND"
    return "ND" if found in BASE_FORMATS else str(getattr(found, "name", found))


def list_results(result: Any) -> Sequence[Any]:
    """Results as a sequence."""
    return result if isinstance(result, (tuple, list)) else (result,)


def flat_tensors(values: Sequence[Any]) -> list[Tensor]:
    """The tensors in a sequence, and in the sequences in it."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += flat_tensors(value)
    return found
