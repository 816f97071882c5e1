"""Detectors on profiles made on an Ascend NPU."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from joymigrate.language import Text
from joymigrate.profile.advice.advise import AdviceSubject, Hit
from joymigrate.profile.advice.ascend_profile import KernelLaunch
from joymigrate.profile.advice.rules import AdviceRule


def like(text: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits one of the patterns."""
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def group_kernels(kernels: Iterable[KernelLaunch], what: str = "") -> Iterator[Hit]:
    """Kernels of one type as one place."""
    groups: dict[str, list[KernelLaunch]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.type].append(kernel)
    for kind, group in groups.items():
        worst = max(group, key=lambda kernel: kernel.us)
        detail = f"{kind}{what} {worst.shapes} {worst.dtypes}".strip()
        yield Hit(detail, worst.name, None, len(group), sum(kernel.us for kernel in group))


def detect_ascend_core(
    subject: AdviceSubject, rule: AdviceRule, *, cores: Sequence[str]
) -> Iterator[Hit]:
    """Kernels on a kind of core, from `limits.us` on."""
    least = rule.limit("us")
    yield from group_kernels(k for k in subject.profile.kernels if k.core in cores and k.us > least)


def detect_ascend_type_share(
    subject: AdviceSubject, rule: AdviceRule, *, types: Sequence[str]
) -> Iterator[Hit]:
    """Types of kernels that take `limits.share` of all kernel time together."""
    found = [kernel for kernel in subject.profile.kernels if kernel.type in types]
    total = subject.profile.total_us
    if total and sum(kernel.us for kernel in found) / total >= rule.limit("share"):
        yield from group_kernels(found)


def detect_ascend_block_dim(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Kernels whose number of blocks is no multiple of the number of cores."""
    known = subject.profile.cores
    cube = int(known.get("cube") or rule.limit("cores"))
    vector = int(known.get("vector") or rule.limit("vector_cores"))
    for kernel in subject.profile.kernels:
        cores = vector if kernel.core == "AI_VECTOR_CORE" else cube
        if "CPU" in kernel.core or kernel.us < rule.limit("us") or not kernel.blocks:
            continue
        if kernel.blocks % cores:
            what = Text(
                "{type} {shapes}: {blocks} blocks on {cores} cores", type=kernel.type,
                shapes=kernel.shapes, blocks=kernel.blocks, cores=cores,
            )  # fmt: skip
            yield Hit(what, kernel.name, None, 1, kernel.us)


def detect_ascend_no_bound(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Kernels none of whose units is busy."""
    units = ("vec", "mac", "scalar", "mte1", "mte2", "mte3")
    found = [
        kernel
        for kernel in subject.profile.kernels
        if kernel.us >= rule.limit("us")
        and "CPU" not in kernel.core
        and any(kernel.ratios.get(unit) for unit in units)
        and all(kernel.ratios.get(unit, 0.0) < rule.limit("ratio") for unit in units)
    ]
    yield from group_kernels(found, " bound by nothing")


def detect_ascend_bound(
    subject: AdviceSubject,
    rule: AdviceRule,
    *,
    ratios: Mapping[str, float],
    types: Sequence[str] = ("*",),
    cores: Sequence[str] = (),
) -> Iterator[Hit]:
    """Kernels of some types none of whose named units reaches its ratio."""
    found = [
        kernel
        for kernel in subject.profile.kernels
        if kernel.us >= rule.limit("us")
        and like(kernel.type, types)
        and (not cores or kernel.core in cores)
        and any(unit in kernel.ratios for unit in ratios)
        and all(kernel.ratios.get(unit, 0.0) < least for unit, least in ratios.items())
    ]
    yield from group_kernels(found)


def detect_ascend_small(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Many kernels too short to hide their launch."""
    kernels = subject.profile.kernels
    short = [kernel for kernel in kernels if kernel.us < rule.limit("us")]
    total = subject.profile.total_us
    if len(kernels) < rule.limit("kernels") or not total:
        return
    time = sum(kernel.us for kernel in short)
    many = len(short) / len(kernels) >= rule.limit("count_share")
    if many and time / total >= rule.limit("time_share"):
        what = Text("{short} of {kernels} kernels", short=len(short), kernels=len(kernels))
        yield Hit(what, calls=len(short), self_us=time)


def matching(subject: AdviceSubject, names: Sequence[str]) -> list[tuple[str, int, float]]:
    """Host events whose name fits: name, count, µs."""
    return [(n, *found) for n, found in subject.profile.events.items() if like(n, names)]


def detect_ascend_event(
    subject: AdviceSubject, rule: AdviceRule, *, names: Sequence[str]
) -> Iterator[Hit]:
    """Host events that reach each limit in all: `calls`, `us`."""
    found = matching(subject, names)
    sums = {"calls": sum(n for _, n, _ in found), "us": sum(us for *_, us in found)}
    if found and all(sums[name] >= least for name, least in rule.limits.items()):
        yield from (Hit(name, calls=count, self_us=us) for name, count, us in found)


def detect_ascend_event_ratio(
    subject: AdviceSubject, rule: AdviceRule, *, names: Sequence[str], per: Sequence[str]
) -> Iterator[Hit]:
    """Host events that come with more than `limits.ratio` of some others."""
    count = sum(n for _, n, _ in matching(subject, names))
    others = sum(n for _, n, _ in matching(subject, per))
    if others and count >= rule.limit("calls") and count / others > rule.limit("ratio"):
        said = "{count} synchronisations for {others} launches"
        yield Hit(Text(said, count=count, others=others), calls=count)


def detect_ascend_dynamic(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Types of kernels that were launched with many shapes."""
    groups: dict[str, list[KernelLaunch]] = defaultdict(list)
    for kernel in subject.profile.kernels:
        groups[kernel.type].append(kernel)
    for kind, group in groups.items():
        shapes = {kernel.shapes for kernel in group}
        time = sum(kernel.us for kernel in group)
        heavy = time >= rule.limit("share") * subject.profile.total_us
        if len(shapes) >= rule.limit("shapes") and heavy and len(shapes) > len(group) / 2:
            what = Text("{kind} with {shapes} shapes", kind=kind, shapes=len(shapes))
            yield Hit(what, calls=len(group), self_us=time)


def detect_ascend_packets(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Links most of whose packets are small."""
    for link, least in (("SDMA", rule.limit("sdma_mb")), ("RDMA", rule.limit("rdma_mb"))):
        sizes = subject.profile.packets.get(link) or {}
        count = sum(sizes.values())
        small = sum(n for size, n in sizes.items() if size < least)
        if count and small / count > rule.limit("share"):
            said = "{link}: {small} of {count} packets below {least} MB"
            words = {"link": link, "small": small, "count": count, "least": f"{least:g}"}
            yield Hit(Text(said, **words), calls=small)
