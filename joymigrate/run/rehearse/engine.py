"""One kernel for all operators: lay CPU tensors over device memory, let torch's CPU kernel (or our
reference) compute, and put the results on the device.

Each distinct combination of operator, dtypes, shapes, strides and integer arguments goes once
through the vendor's own C++ first (see vendor.py), which makes its checks and says which dtype
and strides the results have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.chips import get
from joymigrate.run.rehearse import aliases, gap, generators, matrix_unit, numerics
from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.field_reports import Reports
from joymigrate.run.rehearse.graphs import GraphCaptures, wait_for_the_stream
from joymigrate.run.rehearse.host_arguments import HostArguments, refuse_host_tensor
from joymigrate.run.rehearse.numbers import NumberWatch
from joymigrate.run.rehearse.operator import RehearsedOperator, out_variant
from joymigrate.run.rehearse.overhead_watch import find_overheads
from joymigrate.run.rehearse.overheads import Overhead
from joymigrate.run.rehearse.record import RehearsalRecord
from joymigrate.run.rehearse.refs.precondition import PreconditionError
from joymigrate.run.rehearse.settings import RehearsalSettings
from joymigrate.run.rehearse.signatures import Signatures, settle
from joymigrate.run.rehearse.streams import Streams
from joymigrate.run.rehearse.vendor import (
    AGREES,
    VendorKernels,
    VendorPass,
    depends_on_data,
    flat_tensors,
    list_results,
)

_torch_function_mode = torch._C._is_torch_function_mode_enabled
SEEN_LIMIT = 2048  # combinations of one operator that go through the vendor's C++
NOT_RESIZABLE = "not resizable"
OURS = "joymigrate_ours"  # marks an error of ours while it goes up through the vendor's C++


class RehearsalEngine:
    """Makes the kernels of one process. `record` receives what they see."""

    def __init__(
        self,
        settings: RehearsalSettings,
        record: RehearsalRecord,
        vendor: VendorKernels,
        signatures: Signatures,
    ) -> None:
        self.graphs = GraphCaptures(vendor.shim, record, get(settings.chip))
        self.settings = settings
        self.record = record
        self.vendor = vendor
        self.local = threading.local()
        self.always = settings.mode == "shadow"
        self.operators: list[RehearsedOperator] = []
        self.signatures = signatures
        self.streams: Streams | None = None  # in the asynchronous mode
        self.reports = Reports(settings)
        self.numbers = NumberWatch(record, self.reports) if settings.watch else None
        self.inherited: set[int] = set()  # rows of the process that this one was forked from
        record.sources.append(self.count_kernels)
        record.sources.append(self.list_signatures)
        os.register_at_fork(after_in_child=self.forget)

    def is_nested(self) -> bool:
        """Whether this thread is inside the vendor's C++, which is looked at and not run."""
        return getattr(self.local, "nested", False)

    def forget(self) -> None:
        """In a forked child: what is counted here was the parent's."""
        for row in self.signatures.rows.values():
            row["calls"] = 0
        self.inherited = {id(row) for row in self.signatures.rows.values()}
        for operator in self.operators:
            operator.hits.update(dict.fromkeys(operator.hits, 0))
            for _, places in operator.overheads.values():
                places.clear()

    def list_signatures(self, record: RehearsalRecord) -> None:
        """Every distinct call, once the process ends: the list is long."""
        if not record.finished:
            return
        for operator in self.operators:
            for key, row in operator.rows.items():
                row["calls"] += operator.hits.get(key, 0)
            operator.rows.clear()
        rows = self.signatures.rows.values()
        record.signatures = [row for row in rows if row["calls"] or id(row) not in self.inherited]

    def count_kernels(self, record: RehearsalRecord) -> None:
        """Chip kernels, checks and refusals of the calls that did not go through the vendor's C++
        again."""
        record.repeated.clear()
        record.repeated_checks.clear()
        record.repeated_refusals.clear()
        for operator in self.operators:
            for key, hits in list(operator.hits.items()):
                if not hits:
                    continue
                for kernel in operator.kernels.get(key, ()):
                    record.repeated[kernel] += hits
                judge, refusals = operator.judged[key]
                record.repeated_checks[judge] += hits
                for refusal in refusals:
                    record.repeated_refusals[refusal] += hits

    def kernel(
        self, operator: RehearsedOperator, compute: Callable[..., Any], source: str
    ) -> Callable[..., Any]:
        """The kernel of `operator`: `compute` takes the CPU aliases. `source` says what it is."""
        compute = self.with_numerics(operator, compute)
        self.operators.append(operator)
        run = Dispatch(self, operator, compute, source)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            # A function mode of the program (`with torch.device(...)`, a recorder) is not meant
            # for what happens below the dispatcher.
            if _torch_function_mode():
                with torch._C.DisableTorchFunction():
                    return run(args, kwargs)
            return run(args, kwargs)

        return kernel if self.streams is None else self.streams.watched(operator, kernel)

    def ask_reports(
        self, operator: RehearsedOperator, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        """Tell what people reported of such a call of the program."""
        if self.numbers is not None and operator.base in self.reports.rows:
            self.numbers.ask_reports(operator, args, kwargs, self.graphs.captures())

    def with_numerics(
        self, operator: RehearsedOperator, compute: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`compute` with the rehearsal's precision and faults."""
        unit = matrix_unit.unit_of(operator.name)
        inner = compute
        if unit is not None:
            precision, vendor = self.settings.precision, self.vendor
            dropped = numerics.hf32_dropped_bits(self.settings.soc)

            def rounded(*args: Any, **kwargs: Any) -> Any:
                wanted = precision
                if wanted == "fp32":
                    if unit != "matmul" or not vendor.shim.matmul_hf32():
                        return inner(*args, **kwargs)
                    wanted = "hf32"
                keep = {operator.writes[0]} if operator.writes else set()
                given = (
                    a if i in keep else numerics.degrade(a, wanted, dropped)
                    for i, a in enumerate(args)
                )
                return inner(*given, **kwargs)

            compute = rounded
        error = self.settings.inject.get(operator.base, self.settings.inject.get(operator.name))
        return faulty(operator, compute, error) if error else compute


def faulty(
    operator: RehearsedOperator, compute: Callable[..., Any], error: float
) -> Callable[..., Any]:
    """`compute` whose result is off by the relative `error`, also where it writes in place."""

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        if not operator.writes:
            return numerics.inject(result, error)
        target = pick(args, kwargs, operator.writes[0])
        if isinstance(target, Tensor) and target.is_floating_point():
            target.mul_(1 + error)
        return result

    return wrong


def pick(args: Sequence[Any], kwargs: dict[str, Any], place: int | str) -> Any:
    """The argument at a position or of a name."""
    if isinstance(place, str):
        return kwargs.get(place)
    return args[place] if place < len(args) else None


class Dispatch:
    """One operator's way through the engine."""

    __slots__ = ("compute", "direct", "engine", "operator", "source")

    def __init__(
        self,
        engine: RehearsalEngine,
        operator: RehearsedOperator,
        compute: Callable[..., Any],
        source: str,
    ) -> None:
        self.engine = engine
        self.operator = operator
        self.compute = compute
        self.source = source
        # Straight into device memory: when it is torch's own kernel that computes a new tensor.
        plain = compute is operator.overload._op
        if plain and not (operator.writes or operator.views or operator.random):
            operator.into = out_variant(operator.overload)
        fixed = not operator.data_dependent  # else equal signatures may have other results
        self.direct = operator.into is not None and fixed and not engine.always

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        operator = self.operator
        pairs: list[tuple[Tensor, Tensor]] = []
        signature: list[Any] = []
        engine = self.engine
        nested = getattr(engine.local, "nested", False)
        host = HostArguments(operator, pairs, signature, nested or operator.mixes_devices)
        host_args = [host.value(value) for value in args]
        host_kwargs = {name: host.value(value) for name, value in kwargs.items()} if kwargs else {}
        index = host.device
        if index < 0:
            index = torch.npu.current_device()  # type: ignore[attr-defined]
        if host.host_tensor is not None and pairs and not (nested or operator.mixes_host):
            refuse_host_tensor(operator, host.host_tensor, index)

        if nested:  # inside the vendor's C++: see which kernels this part of it asks for
            return self.first(args, kwargs, host_args, host_kwargs, pairs, index, None)
        engine.record.calls[operator.name] += 1
        if engine.graphs.active and engine.graphs.captures():
            return self.captured(args, kwargs, host_args, host_kwargs, pairs, index, signature)
        signature.append(torch.get_default_dtype())  # integers divided have this one
        key = tuple(signature)
        plan = operator.seen.get(key)
        if plan is None or engine.always:
            if len(operator.seen) < SEEN_LIMIT or engine.always:
                return self.first(args, kwargs, host_args, host_kwargs, pairs, index, key)
            plan = operator.usual
        elif key in operator.hits:
            operator.hits[key] += 1
            known = operator.overheads.get(key) if operator.overheads else None
            if known is not None:
                self.note(known)
        form = operator.direct.get(key)
        if form is not None:
            dtype, size, stride = form
            target = torch.empty_strided(size, stride, dtype=dtype, device=aliases.device(index))
            at = (target.data_ptr(), form)
            alias = aliases._kept.get(at)
            into, name = operator.into
            host_kwargs[name] = aliases.keep(at, target) if alias is None else alias
            try:
                into(*host_args, **host_kwargs)
            except RuntimeError as error:
                if NOT_RESIZABLE in str(error):
                    self.give_up_direct(host_kwargs.pop(name))
                elif gap.is_gap(error):  # the first call of this combination went round it
                    aliases.forget(host_kwargs.pop(name))
                    operator.direct.pop(key, None)
                else:
                    raise
            else:
                if engine.numbers is not None:
                    engine.numbers.look(operator, host_args, host_kwargs, host_kwargs[name], target)
                return target
        result = self.run(host_args, host_kwargs, index)
        back = self.back(result, args, kwargs, pairs, index, plan)
        if engine.numbers is not None:
            engine.numbers.look(operator, host_args, host_kwargs, result, back)
        return back

    def captured(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        host_args: list[Any],
        host_kwargs: dict[str, Any],
        pairs: list[tuple[Tensor, Tensor]],
        index: int,
        signature: list[Any],
    ) -> Any:
        """A call that becomes a node of a graph. The vendor's C++ sees each, not the first alone:
        what waits for the host is refused there."""
        graphs, operator = self.engine.graphs, self.operator
        if depends_on_data(operator, args, kwargs):
            wait_for_the_stream()
        written = flat_tensors([pick(host_args, host_kwargs, place) for place in operator.writes])
        graphs.save(written)
        key = (*signature, torch.get_default_dtype())
        again = (list(host_args), dict(host_kwargs))
        back = self.first(args, kwargs, host_args, host_kwargs, pairs, index, key)
        own = [one for one in flat_tensors(list_results(back)) if one.get_device() >= 0]
        known = {tensor.data_ptr() for _, tensor in pairs}
        results = [aliases.make_alias(one) for one in flat_tensors(list_results(back))]

        def run() -> None:
            made = flat_tensors(list_results(self.run(list(again[0]), dict(again[1]), index)))
            for target, value in zip(results, made, strict=False):
                if target.data_ptr() != value.data_ptr():
                    target.copy_(value)

        fresh = [a for a, one in zip(results, own, strict=False) if one.data_ptr() not in known]
        graphs.add(run, fresh)
        return back

    def give_up_direct(self, alias: Tensor) -> None:
        """Some kernels use their `out` for something of another size on the way."""
        aliases.forget(alias)
        self.direct = False
        self.operator.direct.clear()

    def run(self, args: list[Any], kwargs: dict[str, Any], index: int) -> Any:
        """Compute on the aliases."""
        operator = self.operator
        if operator.random:
            return self.run_random(args, kwargs, index)
        try:
            return self.attempt(args, kwargs)
        except RuntimeError as error:
            if NOT_RESIZABLE not in str(error) or not operator.out:
                raise
        # An alias can't grow; give the operator tensors of its own, `back` moves them over.
        for place in operator.writes:
            if isinstance(place, str) and isinstance(kwargs.get(place), Tensor):
                kwargs[place] = kwargs[place].clone()
        return self.compute(*args, **kwargs)

    def attempt(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Compute, in another way where torch's CPU build has a gap that the chip has not."""
        try:
            return self.compute(*args, **kwargs)
        except PreconditionError as error:
            if self.engine.is_nested():
                raise
            raise self.engine.vendor.refuse_numbers(self.operator, error) from error
        except RuntimeError as error:
            if not gap.is_gap(error):
                raise
            return gap.compute_otherwise(self.operator, self.compute, args, kwargs, error)

    def run_random(self, args: list[Any], kwargs: dict[str, Any], index: int) -> Any:
        """Compute with random numbers that follow the device's generator."""
        place = self.operator.generator
        if place is None:
            with generators.follow_seed(generators.device_generator(index)):
                return self.attempt(args, kwargs)
        given = pick(args, kwargs, place)
        if given is None:
            given = generators.device_generator(index)
        host = generators.host_generator(given) if given.device.type != "cpu" else given
        if isinstance(place, str) or place >= len(args):
            kwargs = {**kwargs, self.operator.generator_name: host}
        else:
            args = [*args]
            args[place] = host
        return self.attempt(args, kwargs)

    def first(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        host_args: list[Any],
        host_kwargs: dict[str, Any],
        pairs: list[tuple[Tensor, Tensor]],
        index: int,
        key: Any,
    ) -> Any:
        """The first call of a combination: the vendor's C++ checks it and shapes the results.

        Without a `key` the call comes from the vendor's C++ itself and is not the program's.
        """
        engine, operator = self.engine, self.operator
        written = [pick(host_args, host_kwargs, place) for place in operator.writes]
        outermost = key is not None
        row = engine.signatures.note(operator.name, args, kwargs) if outermost else {}
        if outermost:
            engine.ask_reports(operator, args, kwargs)
        engine.local.nested = True
        try:
            passed = engine.vendor.call(operator, args, kwargs, written, index)
        except RuntimeError as error:
            # Torch's CPU kernel of a part failed, which says nothing about the chip.
            if not (outermost and getattr(error, OURS, False)):
                raise
            passed = VendorPass(False)
        finally:
            engine.local.nested = not outermost
        try:
            result = self.run(host_args, host_kwargs, index)
        except Exception as error:
            if passed.refusals:  # the chip's answer, not what our arithmetic says of such a call
                raise engine.vendor.error_of(passed.refusals[0]) from error
            if not outermost:
                setattr(error, OURS, True)
            raise
        plan = engine.vendor.compare(operator, result, passed, pairs)
        back = self.back(result, args, kwargs, pairs, index, plan, passed.results)
        if outermost and engine.numbers is not None:
            engine.numbers.look(operator, host_args, host_kwargs, result, back)
        if outermost:
            self.note_first(key, passed, args, kwargs)
            self.remember(key, passed, plan, result, back, row)
            settle(row, (engine.record.refusals[one]["message"] for one in passed.refusals))
        return back

    def note_first(
        self, key: Any, passed: VendorPass, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        """The overheads of the first call of a combination."""
        operator = self.operator
        found = find_overheads(
            operator, passed.forms, flat_tensors([*args, *kwargs.values()]),
            self.engine.vendor.limits, waits=depends_on_data(operator, args, kwargs),
        )  # fmt: skip
        if found:
            operator.overheads[key] = (found, {})
            self.note(operator.overheads[key])

    def note(self, known: tuple[Sequence[Overhead], dict[str, list[dict[str, Any]]]]) -> None:
        """Count overheads at the program's line; `known` keeps the record's rows by line."""
        found, places = known
        where = call_site()
        rows = places.get(where)
        if rows is None:
            rows = places[where] = [self.engine.record.overhead(one, where) for one in found]
        for row in rows:
            row["calls"] += 1

    def remember(
        self, key: Any, passed: VendorPass, plan: Any, result: Any, back: Any, row: dict[str, Any]
    ) -> None:
        """What later calls of this combination need to know."""
        engine, operator = self.engine, self.operator
        source = self.source
        if passed.ran and source != "reference":
            source = "vendor_cpp"
        if engine.record.operators.get(operator.name) != "vendor_cpp":
            engine.record.operators[operator.name] = source
        engine.record.checks[passed.judge] += 1
        if not engine.always:
            operator.judged[key] = (passed.judge, passed.refusals)
            operator.hits.setdefault(key, 0)
            operator.rows[key] = row
            if passed.kernels:
                operator.kernels[key] = passed.kernels
        operator.seen[key] = plan
        operator.usual = tuple(form and (form[0], None) for form in plan)
        if self.direct and type(back) is Tensor and back.dtype is result.dtype and back.numel():
            operator.direct[key] = (back.dtype, back.size(), back.stride())

    def back(
        self,
        result: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        pairs: list[tuple[Tensor, Tensor]],
        index: int,
        plan: Any,
        made: Any = None,
    ) -> Any:
        """The CPU results as device tensors."""
        operator = self.operator
        if operator.out:
            self.settle(kwargs, pairs, result)
        if type(result) is Tensor:
            place = operator.returned[0] if operator.returned else None
            if place is not None:
                return pick(args, kwargs, place)
            if operator.views:
                view = aliases.view_of(result, pairs)
                if view is not None:
                    return view
            if plan is AGREES and made is None:
                return aliases.to_device(result, index)
            return shape_result(result, index, plan, made, 0)
        if isinstance(result, (tuple, list)):
            items = [
                self.item(number, value, args, kwargs, pairs, index, plan, made)
                for number, value in enumerate(result)
            ]
            return tuple(items) if isinstance(result, tuple) else items
        return result

    def item(
        self,
        number: int,
        value: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        pairs: list[tuple[Tensor, Tensor]],
        index: int,
        plan: Any,
        made: Any,
    ) -> Any:
        """One of several results."""
        if isinstance(value, (tuple, list)):
            return [aliases.to_device(one, index) for one in value]
        if not isinstance(value, Tensor) or number in self.operator.on_host:
            return value
        returned = self.operator.returned
        place = returned[number] if number < len(returned) else None
        if place is not None:
            return pick(args, kwargs, place)
        if self.operator.views:
            view = aliases.view_of(value, pairs)
            if view is not None:
                return view
        return shape_result(value, index, plan, made, number)

    def settle(
        self, kwargs: dict[str, Any], pairs: list[tuple[Tensor, Tensor]], result: Any
    ) -> None:
        """Let the device's `out` tensors follow where the operator changed their sizes."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        outs = [kwargs.get(place) for place in self.operator.writes if isinstance(place, str)]
        for target, made in zip(outs, results, strict=False):
            if not isinstance(target, Tensor) or not isinstance(made, Tensor):
                continue
            if target.size() != made.size():
                alias = next((a for a, original in pairs if original is target), None)
                if alias is not None:
                    aliases.forget(alias)
                target.resize_(made.size())
            if made.numel() and made.data_ptr() != target.data_ptr():
                aliases.fill(target, made)


def shape_result(result: Tensor, index: int, plan: Any, made: Any, number: int) -> Tensor:
    """A result on the device, in the dtype and strides that the vendor's C++ gave."""
    target: Tensor | None = made[number] if made is not None and number < len(made) else None
    if target is not None and target.size() == result.size():
        if target.dtype is not result.dtype:
            result = result.to(target.dtype)
        aliases.fill(target, result)
        return target
    wanted = plan[number] if plan is not AGREES and number < len(plan) else None
    if wanted is None:
        return aliases.to_device(result, index)
    dtype, stride = wanted
    if stride is None or len(stride) != result.dim():
        return aliases.to_device(result.to(dtype), index)
    target = torch.empty_strided(result.size(), stride, dtype=dtype, device=aliases.device(index))
    aliases.fill(target, result if result.dtype is dtype else result.to(dtype))
    return target
