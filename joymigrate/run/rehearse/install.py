"""Puts the rehearsal's kernels under torch_npu's operators, right after it was imported.

What stays the vendor's own: allocation and metadata (empty, as_strided, view, resize, formats),
copies that only move bytes, autograd formulas, autocast lists, streams, process groups.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from joymigrate.run.rehearse import (
    fallback,
    job_facts,
    observe,
    overhead_watch,
    traps,
    triton_kernels,
)
from joymigrate.run.rehearse.builtin import BUILT_IN
from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.dispatch import AUTOGRAD_KEY, KEY, Dispatcher, find_overload
from joymigrate.run.rehearse.engine import RehearsalEngine
from joymigrate.run.rehearse.limits import Limits
from joymigrate.run.rehearse.operator import RehearsedOperator, describe
from joymigrate.run.rehearse.overheads import WAIT, Overhead
from joymigrate.run.rehearse.record import RehearsalRecord, open_record
from joymigrate.run.rehearse.refs.declaration import Reference, arguments_of
from joymigrate.run.rehearse.settings import RehearsalSettings
from joymigrate.run.rehearse.shim import Shim
from joymigrate.run.rehearse.signatures import Signatures
from joymigrate.run.rehearse.streams import Streams
from joymigrate.run.rehearse.vendor import VendorKernels

# Allocation and metadata: the package's own kernels need no chip for these.
KEEP = frozenset(
    """_local_scalar_dense _pack_padded_sequence _pad_packed_sequence _pin_memory _reshape_alias
    as_strided as_strided_ copy_memory_ empty.memory_format empty_like empty_strided
    empty_with_format unsafe_empty_with_format empty_with_swapped_memory new_empty_strided
    is_pinned is_set_to record_stream resize_ resize_as_ set_ set_.source_Storage
    set_.source_Storage_storage_offset set_.source_Tensor squeeze squeeze.dim _to_copy unfold
    unsqueeze view get_npu_format get_storage_size npu_change_data_ptr _lazy_clone contiguous
    _copy_from_and_resize npu_format_cast npu_format_cast.Tensor _npu_format_cast
    npu_format_cast_ npu_format_cast_.acl_format
    to.dtype_layout to.device to.dtype to.other
    """.split()  # noqa: SIM905  a list of quoted names would take four times the lines
)
# Registered for autograd with a kernel that calls the chip without dispatching again; they have
# no gradient, so autograd can be passed by.
STRAIGHT_TO_CHIP = (
    *("aten::one_hot", "aten::fill_diagonal_", "aten::affine_grid_generator_backward"),
    *("aten::conv_tbc_backward", "aten::max.out", "aten::min.out", "aten::nanmean.out"),
    *("aten::slogdet", "aten::__ior__.Scalar", "aten::__ior__.Tensor"),
    *("aten::__xor__.Scalar", "aten::__xor__.Tensor"),
)
# Kernels of the package that stay, and are watched in the asynchronous mode.
MAKING = ("aten::empty.memory_format", "aten::empty_strided")
COPYING = ("aten::_local_scalar_dense", "npu::copy_memory_")
WAITING = "_local_scalar_dense"  # the host reads one number, and waits for it
_installed: list[Dispatcher] = []  # its libraries must live as long as their kernels


def list_registered(key: str) -> set[str]:
    """Names of the operators that have a kernel for a dispatch key."""
    return set(torch._C._dispatch_get_registrations_for_dispatch_key(key))


def install(settings: RehearsalSettings, shim: Shim) -> None:
    """Install the device in this process. The dry mode keeps all of the vendor's kernels."""
    record = open_record(settings.session)
    observe.install(settings, shim, record)
    traps.install(record)
    job_facts.install(settings, shim, record)
    overhead_watch.watch(record)
    triton_kernels.keep(record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that kernels are overridden: on purpose
        dispatcher = Dispatcher(settings.libraries)
        falling_back = fallback.falling_back()  # before we register anything
        signatures = Signatures()
        fallbacks = fallback.Fallbacks(dispatcher, settings, record, signatures)
        if settings.mode != "dry":
            install_kernels(dispatcher, settings, shim, record, signatures)
        fallbacks.count(falling_back)
        watch_casts(dispatcher, record)
    fallbacks.watch()
    _installed.append(dispatcher)


def install_kernels(
    dispatcher: Dispatcher,
    settings: RehearsalSettings,
    shim: Shim,
    record: RehearsalRecord,
    signatures: Signatures,
) -> None:
    """Override the package's kernels by the engine's."""
    engine = RehearsalEngine(
        settings,
        record,
        VendorKernels(shim, record, Limits(settings.soc), strict=settings.strict),
        signatures,
    )
    streams = None
    if settings.mode == "async":
        streams = engine.streams = Streams(shim, record, settings.soc, engine.is_nested)
    references = load_references()
    composites = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    computable = list_registered("CPU").union(*map(list_registered, composites))
    computable |= list_registered("CompositeExplicitAutogradNonFunctional")
    names = list_registered(KEY)
    for name in sorted(names):
        namespace, rest = name.split("::")
        kept = rest in KEEP
        if namespace not in ("aten", "npu", "atb"):
            continue
        if kept and rest != WAITING and rest.partition(".")[0] not in engine.reports.rows:
            continue
        overload = find_overload(name)
        if overload is None:
            continue
        operator = describe(name, overload)
        if namespace != "atb":  # their kernels go into a library of C++ objects: empty here
            operator.vendor = dispatcher.kernel(name)
        if name in BUILT_IN:
            dispatcher.put(name, engine.kernel(operator, BUILT_IN[name], "reference"))
        elif name in references:
            compute = on_cpu(fit_release(overload, references[name]))
            operator.random |= "dropout" in name or "fusion_attention" in name
            dispatcher.put(name, engine.kernel(operator, compute, "reference"))
        elif namespace == "aten" and name in computable and not kept:
            kernel = engine.kernel(operator, overload._op, "cpu_alias")
            if streams is not None and name == "aten::copy_":
                kernel = streams.copying(operator, kernel)
            dispatcher.put(name, kernel)
        elif operator.vendor is not None:
            dispatcher.put(name, passed_on(operator, engine))
        elif namespace == "atb":
            dispatcher.put(name, make_unsimulated(operator, record))
    for name in STRAIGHT_TO_CHIP:
        if name in names:
            dispatcher.put(name, torch.library.fallthrough_kernel, AUTOGRAD_KEY)
    if streams is not None:
        watch_memory(dispatcher, streams)


def watch_memory(dispatcher: Dispatcher, streams: Streams) -> None:
    """Put watching kernels before those of the package that make memory or copy by themselves."""
    for name in MAKING:
        real = dispatcher.kernel(name)
        if real is not None:
            dispatcher.put(name, streams.allocating(real))
    for name in COPYING:
        real = dispatcher.kernel(name)
        if real is not None:
            dispatcher.put(name, streams.passing(name, real))


def watch_casts(dispatcher: Dispatcher, record: RehearsalRecord) -> None:
    """Put a watching kernel before the package's `_to_copy`."""
    real = dispatcher.kernel("aten::_to_copy")
    if real is not None:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
        dispatcher.put("aten::_to_copy", traps.watching_casts(real, keys, record))


def passed_on(operator: RehearsedOperator, engine: RehearsalEngine) -> Callable[..., Any]:
    """The vendor's own kernel; notes when it needs a chip kernel that has no simulation."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not engine.is_nested():
            engine.ask_reports(operator, args, kwargs)
            if operator.base == WAITING:
                engine.record.overhead(Overhead(WAIT, operator.name), call_site())["calls"] += 1
        try:
            return operator.vendor.call_boxed(keys, *args, **kwargs)
        except RuntimeError as error:
            if "has no simulation" in str(error):
                engine.record.unsimulated[operator.name] += 1
            raise

    return kernel


def make_unsimulated(operator: RehearsedOperator, record: RehearsalRecord) -> Callable[..., Any]:
    """A kernel that says that nothing here computes this operator."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        record.unsimulated[operator.name] += 1
        raise NotImplementedError(f"{operator.name} has no simulation")

    return kernel


def load_references() -> dict[str, Any]:
    """Our references of the package's own operators, by name."""
    from joymigrate.run.rehearse import refs

    found: dict[str, Any] = dict(refs.registry())
    return found


def fit_release(overload: Any, reference: Reference) -> Callable[..., Any]:
    """A reference, written for the newest declaration, as this release declares the operator.

    Arguments go by name where their order differs. Results that the release does not have are left.
    """
    wanted = [argument.name for argument in overload._schema.arguments]
    known = list(arguments_of(reference.name))
    results = len(overload._schema.returns)
    by_name = known[: len(wanted)] != wanted and set(wanted) <= set(known)

    def fit(*args: Any, **kwargs: Any) -> Any:
        if by_name:
            args, kwargs = (), {**dict(zip(wanted, args, strict=False)), **kwargs}
        made = reference.function(*args, **kwargs)
        if isinstance(made, tuple) and len(made) > results:
            return made[:results] if results > 1 else made[0]
        return made

    return fit


def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a reference as if it were called by a program: with autograd at hand, but not on."""
    keys = torch._C.DispatchKey
    above = (keys.AutogradCPU, keys.ADInplaceOrView, keys.AutogradOther)

    def compute(*args: Any, **kwargs: Any) -> Any:
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for key in above:
            excluded = excluded.remove(key)
        included = torch._C._dispatch_tls_local_include_set()
        with (
            torch._C._ForceDispatchKeyGuard(included, excluded),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            return function(*args, **kwargs)

    return compute
