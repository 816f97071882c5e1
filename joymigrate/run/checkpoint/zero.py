"""DeepSpeed ZeRO folders: the float32 weights and optimiser states of all ranks, joined.

Layout after DeepSpeed's own zero_to_fp32 (0.14): stages 1 and 2 keep one flat partition per group
and rank, parameters one after the other; stage 3 cuts each parameter into equal parts, the last
ones padded. Not compared with a checkpoint of a real run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.checkpoint.pickled import torch_file

RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)")
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


def is_zero(folder: Path) -> bool:
    """Whether a folder holds a ZeRO checkpoint, by itself or in its `latest`."""
    return bool(list(step_folder(folder).glob("*_optim_states.pt")))


def step_folder(folder: Path) -> Path:
    """The folder of the step that `latest` names; the folder itself without one."""
    latest = folder / "latest"
    if latest.is_file():
        return folder / latest.read_text(encoding="utf-8").strip()
    return folder


def read(folder: Path, trust: bool) -> dict[str, Any]:
    """`model` (float32), `optimizer` moments by parameter name, and the run's own numbers."""
    place = step_folder(folder)
    optimiser = sorted(place.glob("*_optim_states.pt"), key=rank_of)
    models = sorted(place.glob("*model_states.pt"))
    if not models or not optimiser:
        raise JoyError("the checkpoint lacks model or optimiser states", where=str(place))
    if len({RANK.search(path.name)[2] for path in optimiser if RANK.search(path.name)}) > 1:  # type: ignore[index]
        raise JoyError(
            "tensor parallel ZeRO checkpoints are not read", where=str(place),
            help="DeepSpeed's ds_to_universal.py first",
        )  # fmt: skip
    head = torch_file(models[0], trust)
    ranks = [torch_file(path, trust)["optimizer_state_dict"] for path in optimiser]
    stage = int(ranks[0]["zero_stage"])
    shapes: list[Mapping[str, Any]] = list(head["param_shapes"])
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    flat = [[part.reshape(-1) for part in rank[key]] for rank in ranks]
    join = join_stage_3 if stage == 3 else join_stage_2
    model = join(shapes, flat)
    moments = {}
    for name in MOMENTS:
        parts = [moment_parts(rank, name) for rank in ranks]
        if all(parts):
            moments[name] = join(shapes, parts)
    buffers = {k: v for k, v in (head.get("module") or {}).items() if k in head["buffer_names"]}
    kept = {k: head[k] for k in ("global_steps", "global_samples", "lr_scheduler") if k in head}
    steps = [group.get("step") for group in base_state(ranks[0]) if isinstance(group, Mapping)]
    return {
        "model": {**model, **buffers},
        "optimizer": {"zero_stage": stage, "step": steps[0] if steps else None, **moments},
        **kept,
    }


def rank_of(path: Path) -> int:
    """The data-parallel rank in a file's name."""
    found = RANK.search(path.name)
    return int(found[1]) if found else 0


def base_state(rank: Mapping[str, Any]) -> list[Any]:
    """The inner optimiser's state per group."""
    base = rank.get("base_optimizer_state") or []
    if isinstance(base, Mapping):
        return list((base.get("state") or {}).values())
    return list(base)


def moment_parts(rank: Mapping[str, Any], name: str) -> list[Tensor]:
    """One moment's flat partition of each group; empty where the optimiser has none."""
    groups = base_state(rank)
    if not groups or not all(isinstance(g, Mapping) and name in g for g in groups):
        return []
    return [group[name].reshape(-1) for group in groups]


def join_stage_2(
    shapes: Sequence[Mapping[str, Any]], flat: Sequence[Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Stages 1 and 2: a group's partitions of all ranks one after the other, then cut by shape."""
    found = {}
    for number, group in enumerate(shapes):
        whole = torch.cat([rank[number] for rank in flat])
        at = 0
        for name, shape in group.items():
            count = math.prod(shape)
            if at + count > whole.numel():
                raise JoyError(f"the partitions are too short for '{name}': a rank is missing")
            found[name] = whole[at : at + count].reshape(tuple(shape)).clone()
            at += count
    return found


def join_stage_3(
    shapes: Sequence[Mapping[str, Any]], flat: Sequence[Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Stage 3: each parameter lies in equal parts on the ranks, the last of them padded."""
    ranks = [torch.cat(list(groups)) for groups in flat]
    found, at = {}, 0
    for group in shapes:
        for name, shape in group.items():
            count = math.prod(shape)
            each = math.ceil(count / len(ranks))
            if any(at + each > rank.numel() for rank in ranks):
                raise JoyError(f"the partitions are too short for '{name}': a rank is missing")
            whole = torch.cat([rank[at : at + each] for rank in ranks])
            found[name] = whole[:count].reshape(tuple(shape)).clone()
            at += each
    return found
