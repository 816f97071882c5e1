"""DeepSpeed ZeRO folders: the float32 weights and optimiser states of all ranks, joined.

Layout after DeepSpeed's own zero_to_fp32: stages 1 and 2 keep one flat partition per group and
rank, parameters one after the other; stage 3 cuts each parameter into equal parts, the last ones
padded. Weights of folders that DeepSpeed 0.19.8 wrote on two ranks are those of its own script.
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
from joymigrate.run.checkpoint.pickle_files import torch_file

RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)")
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


def is_zero(folder: Path) -> bool:
    """Whether a folder holds a ZeRO checkpoint, by itself or in its `latest`."""
    return bool(list(step_folder(folder).glob("*_optim_states.pt")))


def step_folder(folder: Path, latest: str = "latest") -> Path:
    """The folder of the step that a file names; the folder itself without such a file."""
    named = folder / latest
    return folder / named.read_text(encoding="utf-8").strip() if named.is_file() else folder


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
    heads = [torch_file(path, trust) for path in models]
    head = heads[0]
    ranks = [torch_file(path, trust)["optimizer_state_dict"] for path in optimiser]
    stage = int(ranks[0].get("zero_stage", 1))  # the bfloat16 optimiser's files name none: as 1
    shapes: list[Mapping[str, Any]] = list(head["param_shapes"])
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    flat = [[part.reshape(-1) for part in rank[key]] for rank in ranks]
    model = join(shapes, flat, stage)
    moments = {}
    for name in MOMENTS:
        parts = [moment_parts(rank, name) for rank in ranks]
        if all(parts):
            moments[name] = join(shapes, parts, stage)
    model |= outside(heads, model, stage)
    kept = {k: v for k, v in head.items() if k not in DEEPSPEED and v is not None}
    if "model" in kept:  # of the user's client_state: the weights are called so here
        kept["client_state"] = {"model": kept.pop("model")}
    steps = [group.get("step") for group in base_state(ranks[0]) if isinstance(group, Mapping)]
    optimizer = {"zero_stage": stage, "step": steps[0] if steps else None, **moments}
    groups = param_groups(ranks[0], shapes)
    scale = loss_scale(ranks[0].get("loss_scaler"))
    kept = {"loss_scaler": scale, **kept} if scale else kept
    return {"model": model, "optimizer": {**optimizer, "param_groups": groups}, **kept}


def loss_scale(scaler: Any) -> dict[str, float]:
    """The numbers of DeepSpeed's loss scaler (float16); none where nothing is scaled."""
    fields = {
        key: value for key, value in getattr(scaler, "__dict__", {}).items()
        if isinstance(value, (bool, int, float))
    }  # fmt: skip
    return fields if fields.get("cur_scale", 1.0) != 1.0 else {}


# What DeepSpeed's engine writes of itself; what else is in its file is the user's client_state.
DEEPSPEED = (
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "data_sampler", "random_ltd", "dp_world_size",
    "mp_world_size", "ds_config", "ds_version", "checkpoint_parallel_dimensions",
    "universal_checkpoint_info",
)  # fmt: skip


def outside(
    heads: Sequence[Mapping[str, Any]], model: Mapping[str, Tensor], stage: int
) -> dict[str, Tensor]:
    """Buffers, frozen weights and tied weights: what no optimiser's partition holds."""
    head, found = heads[0], {}
    module: Mapping[str, Tensor] = head.get("module") or {}
    for name, tensor in module.items():
        if name in head["buffer_names"] or (stage < 3 and name not in model):
            found[name] = tensor
    for name, shape in (head.get("frozen_param_shapes") or {}).items():
        parts = [(one.get("frozen_param_fragments") or {})[name].reshape(-1) for one in heads]
        whole = torch.cat(parts) if stage == 3 else parts[0]
        found[name] = whole[: math.prod(shape)].reshape(tuple(shape)).clone()
    for name, other in dict(head.get("shared_params") or {}).items():
        if other in model and name not in model:
            found[name] = model[other]
    return found


def param_groups(
    rank: Mapping[str, Any], shapes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The optimiser's groups: rates and such, and the names of their parameters as `names`."""
    base = inner(rank)
    groups = base.get("param_groups") if isinstance(base, Mapping) else None
    return [
        {**{k: v for k, v in group.items() if k != "params"}, "names": list(names)}
        for group, names in zip(groups or [], shapes, strict=False)
    ]


def inner(rank: Mapping[str, Any]) -> Any:
    """The wrapped optimiser's own state, under its name of stages 1 and 2 or of stage 3."""
    return rank.get("base_optimizer_state") or rank.get("optimizer_state_dict") or []


def rank_of(path: Path) -> int:
    """The data-parallel rank in a file's name."""
    found = RANK.search(path.name)
    return int(found[1]) if found else 0


def base_state(rank: Mapping[str, Any]) -> list[Any]:
    """The inner optimiser's state per group."""
    base = inner(rank)
    if isinstance(base, Mapping):
        return list((base.get("state") or {}).values())
    return list(base)


def moment_parts(rank: Mapping[str, Any], name: str) -> list[Tensor]:
    """One moment's flat partition of each group; empty where the optimiser has none."""
    groups = base_state(rank)
    if not groups or not all(isinstance(g, Mapping) and name in g for g in groups):
        return []
    return [group[name].reshape(-1) for group in groups]


def join(
    shapes: Sequence[Mapping[str, Any]], flat: Sequence[Sequence[Tensor]], stage: int
) -> dict[str, Tensor]:
    """The parameters of all ranks' flat partitions, cut by their shapes.

    Stages 1 and 2: a group's partitions of all ranks lie one after the other. Stage 3: each
    parameter lies in equal parts on the ranks, the last of them padded.
    """
    found, at = {}, 0
    ranks = [torch.cat(list(groups)) for groups in flat] if stage == 3 else []
    for number, group in enumerate(shapes):
        if stage < 3:
            ranks, at = [torch.cat([rank[number] for rank in flat])], 0
        for name, shape in group.items():
            count = math.prod(shape)
            each = math.ceil(count / len(ranks))
            if any(at + each > rank.numel() for rank in ranks):
                raise JoyError(f"the partitions are too short for '{name}': a rank is missing")
            whole = torch.cat([rank[at : at + each] for rank in ranks])
            found[name] = whole[:count].reshape(tuple(shape)).clone()
            at += each
    return found
