"""Weights of models that are first called after training has moved others: a checkpoint that is
loaded, a copy, an average.

Training drifts apart by rounding, so such weights need not have the baseline's bytes. They must be
to the trained model what the baseline's are: its weights of this moment or of an earlier step, or
as far from them as the baseline's copy is from its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from joymigrate.verify.inventory import hashable, tensor_hash
from joymigrate.verify.module_names import ModuleNames, plain
from joymigrate.verify.run_watch import MARK, SAMPLED, RunWatch, mark, sample_strided

MOST_STEPS = 64  # of one weight whose values a copy may have


def local_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Floating weights and buffers of a module whose bytes lie in this process, by plain names."""
    named: list[tuple[str, torch.Tensor]] = [*module.named_parameters(remove_duplicate=False)]
    named += [*module.named_buffers(remove_duplicate=False)]
    return {plain(n): t for n, t in named if hashable(t) and t.is_floating_point()}


def sources(
    roots: ModuleNames, known: Iterable[str], weights: Mapping[str, Mapping[str, Any]], root: str
) -> dict[str, str]:
    """A weight's name below `root` → `root:name` of a trained weight that it may come from: one of
    the same shape and name (wrappers may stand before either) in a model that was called before,
    of which training has moved some weight. `weights` holds the hashes of first calls."""
    mine = local_tensors(roots.modules[root])
    best: dict[str, str] = {}
    for other in known:
        if other == root or other not in roots.modules:
            continue
        theirs = local_tensors(roots.modules[other])
        found = {
            name: f"{other}:{twin}"
            for name, tensor in mine.items()
            for twin in suffixes(name, theirs)
            if theirs[twin].shape == tensor.shape and theirs[twin] is not tensor
        }
        if len(found) > len(best) and have_moved(found.values(), theirs, weights):
            best = found
    return best


def suffixes(name: str, theirs: Mapping[str, torch.Tensor]) -> list[str]:
    """The name itself, else one that ends with it, or that it ends with; none if several do."""
    if name in theirs:
        return [name]
    found = [n for n in theirs if n.endswith(f".{name}") or name.endswith(f".{n}")]
    return found if len(found) == 1 else []


def have_moved(
    names: Iterable[str],
    now: Mapping[str, torch.Tensor],
    weights: Mapping[str, Mapping[str, Any]],
) -> bool:
    """Whether any of these weights is not what it was at its model's first call."""
    for name in names:
        before = weights.get(name)
        if before and before["sha256"] != tensor_hash(now[name.partition(":")[2]])["sha256"]:
            return True
    return False


def describe(
    roots: ModuleNames, root: str, found: Mapping[str, str], watch: RunWatch
) -> dict[str, dict[str, Any]]:
    """For `program.json`: of each weight its source, whether it equals it to the last bit, the
    steps after which the source had these values, and how far it lies from it (norms)."""
    mine = local_tensors(roots.modules[root])
    watch.flush()
    made = {}
    for name, theirs in tensors_of(roots, found).items():
        source, tensor = found[name], mine[name]
        same = tensor_hash(tensor)["sha256"] == tensor_hash(theirs)["sha256"]
        apart = 0.0 if same else distance(tensor, theirs)
        made[f"{root}:{name}"] = {
            "source": source,
            "same": same,
            "steps": [] if same else steps_of(tensor, source, watch),
            "watched": f"{MARK}{source}" in watch.series,
            "apart": apart,
            "norm": norm(theirs),
        }
    return made


def tensors_of(roots: ModuleNames, found: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The trained weights as they are now, by the name of what may come from them."""
    owners = {source.partition(":")[0] for source in found.values()}
    theirs = {owner: local_tensors(roots.modules[owner]) for owner in owners}
    split = {name: source.partition(":") for name, source in found.items()}
    return {name: theirs[owner][leaf] for name, (owner, _, leaf) in split.items()}


def steps_of(tensor: torch.Tensor, source: str, watch: RunWatch) -> list[int]:
    """Steps after which the source had these values, by those that are watched."""
    series = watch.series.get(f"{MARK}{source}", [])
    if not series:
        return []
    mine = mark(sample_strided(tensor.detach(), SAMPLED).float()).tolist()
    return [int(step) for step, *values in series if values == mine][-MOST_STEPS:]


def steps_of_model(root: str, module: torch.nn.Module, watch: RunWatch) -> set[int] | None:
    """Steps after which a model had all the values that it has now, by those that are watched; None
    where none of its weights is."""
    watch.flush()
    found = [
        set(steps_of(tensor, f"{root}:{name}", watch))
        for name, tensor in local_tensors(module).items()
        if f"{MARK}{root}:{name}" in watch.series
    ]
    return set.intersection(*found) if found else None


def norm(tensor: torch.Tensor) -> float:
    """The Euclidean norm, in float64."""
    return float(torch.linalg.vector_norm(tensor.detach().to("cpu", torch.float64)))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The Euclidean distance, in float64; a large number where a value is not finite."""
    gap = one.detach().to("cpu", torch.float64) - other.detach().to("cpu", torch.float64)
    found = float(torch.linalg.vector_norm(gap))
    return found if math.isfinite(found) else 1e300


def find_trained(recorder: Any, root: str, path: str) -> dict[str, torch.Tensor]:
    """Trained weights of this moment that weights below a module may come from, by the names of
    the latter from that module on."""
    facts: Mapping[str, Mapping[str, Any]] = recorder.inventory.origins
    start = f"{root}:{path}." if path else f"{root}:"
    found = {
        name.removeprefix(f"{root}:"): str(fact["source"])
        for name, fact in facts.items()
        if name.startswith(start)
    }
    return {
        f"{root}:{name}".removeprefix(start): tensor
        for name, tensor in tensors_of(recorder.module_names, found).items()
    }
