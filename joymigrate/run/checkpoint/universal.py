"""DeepSpeed's universal checkpoints: one folder a parameter, read on any number of ranks and under
ZeRO 1, 2 and 3 (`"checkpoint": {"load_universal": true}`). Layout after DeepSpeed 0.19.8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.checkpoint.pickle_files import WRITE, make_unknown, torch_file
from joymigrate.run.checkpoint.zero import step_folder

LATEST = "latest_universal"
GLOBAL = "optimizer_state.pt"
VERSION = "0.14.0"  # of DeepSpeed, the first whose three stages read such folders
OWN = ("model", "optimizer", "module", "dp_world_size", "mp_world_size", "ds_version")
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
HEADS = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")


def is_universal(folder: Path) -> bool:
    """Whether a folder is one, by itself or in its `latest_universal`."""
    return (step_folder(folder, LATEST) / "zero" / GLOBAL).is_file()


def read(folder: Path, trust: bool) -> dict[str, Any]:
    """`model`, `optimizer` with moments by parameter name, and what else was saved."""
    place = step_folder(folder, LATEST)
    whole = torch_file(place / "zero" / GLOBAL, trust)
    head = next((place / one for one in HEADS if (place / one).is_file()), None)
    rest = torch_file(head, trust) if head else {}
    model: dict[str, Tensor] = {}
    moments: dict[str, Any] = {}
    step = None
    for path in sorted(place.glob("zero/*/*.pt")):
        held = torch_file(path, trust)
        if path.stem == "step":
            step = held
        elif path.stem == "fp32":
            model[path.parent.name] = held["param"]
        else:
            moments.setdefault(path.stem, {})[path.parent.name] = held["param"]
    order = list(rest.get("module") or model)
    buffers = {k: v for k, v in (rest.get("module") or {}).items() if k not in model}
    model = {name: {**model, **buffers}[name] for name in [*order, *(set(model) - set(order))]}
    optimizer = {"step": step, **moments, "param_groups": whole.get("param_groups", [])}
    return {
        "model": model, "optimizer": optimizer,
        **{key: value for key, value in rest.items() if key not in OWN},
    }  # fmt: skip


def write(state: Any, folder: Path) -> list[str]:
    """Write weights, an optimiser's moments, and all else as the client's state; what is lost."""
    model = state.get("model") if isinstance(state, Mapping) else None
    if not isinstance(model, Mapping) or not all(isinstance(v, Tensor) for v in model.values()):
        raise JoyError(
            "a DeepSpeed folder needs the weights under `model`",
            help='such as {"model": …, "optimizer": …}; --format torch writes any state',
        )
    named, groups, lost = moments_of(state.get("optimizer"), model)
    trained = [name for name in model if name in named] or [
        name for name, value in model.items()
        if value.is_floating_point() and name.rpartition(".")[2] not in BUFFERS
    ]  # fmt: skip
    place = folder / "step"
    (place / "zero").mkdir(parents=True)
    (folder / LATEST).write_text("step", encoding="utf-8")
    for name in trained:
        if "/" in name or name in (".", ".."):
            raise JoyError(f"a parameter is called '{name}', which no folder can be")
        held = {"fp32": model[name].detach().float(), **named.get(name, {})}
        (place / "zero" / name).mkdir()
        for key, value in held.items():
            one = value if key == "step" else {"param": value.detach().cpu().contiguous().clone()}
            torch.save(one, place / "zero" / name / f"{key}.pt")
    steps = [held["step"] for held in named.values() if "step" in held]
    facts = {"state": {0: {"step": steps[0] if steps else torch.tensor(0.0)}}}
    whole = {
        "param_groups": groups,
        "optimizer_state_dict": {**facts, "param_groups": groups}, "ds_version": VERSION,
    }  # fmt: skip
    whole |= scaler_of(state.get("loss_scaler"))
    torch.save(whole, place / "zero" / GLOBAL, pickle_module=WRITE)
    rest = {key: value for key, value in state.items() if key not in OWN}
    head = {
        "global_steps": 0, "skipped_steps": 0, "lr_scheduler": None, **rest,
        "module": dict(model), "dp_world_size": 1, "mp_world_size": 1, "ds_version": VERSION,
        "universal_checkpoint_info": {"universal_checkpoint_version": 0.2},
    }  # fmt: skip
    for name in HEADS:
        torch.save(head, place / name)
    kept = [name for name in model if name not in trained]
    if kept:
        told = f"{kept[0]} and {len(kept) - 1} more" if len(kept) > 1 else kept[0]
        lost.append(f"{told}: in the file, but DeepSpeed restores trained weights alone from it")
    if any(group != groups[0] for group in groups[1:]):
        lost.append("optimizer: ZeRO 3 gives all groups the first one's settings; 1 and 2 do not")
    return lost


def scaler_of(numbers: Any) -> dict[str, Any]:
    """DeepSpeed's own object for a loss scale that our reader gave in numbers (float16)."""
    if not isinstance(numbers, Mapping) or "cur_scale" not in numbers:
        return {}
    dynamic = bool(numbers.get("dynamic"))
    fields = {**numbers, **({"dtype": torch.float16} if dynamic else {})}
    name = "DynamicLossScaler" if dynamic else "LossScaler"
    return {
        "loss_scaler": make_unknown("deepspeed.runtime.fp16.loss_scaler", name, fields),
        "dynamic_loss_scale": dynamic,
    }


def moments_of(
    optimizer: Any, model: Mapping[str, Tensor]
) -> tuple[dict[str, dict[str, Tensor]], list[dict[str, Any]], list[str]]:
    """Each parameter's moments and step, the groups' settings, and what cannot be told.

    Reads torch's own form (numbers or names) and that of our ZeRO reader (moment, then name).
    """
    if not isinstance(optimizer, Mapping):
        lost = [] if optimizer is None else ["optimizer: not the state of one optimiser"]
        return {}, [{"params": []}], lost
    groups = [
        {**{k: v for k, v in group.items() if k not in ("params", "names")}, "params": []}
        for group in optimizer.get("param_groups") or [{}]
    ]
    if not isinstance(optimizer.get("state"), Mapping):
        step, found = optimizer.get("step"), dict[str, dict[str, Tensor]]()
        for key, by_name in optimizer.items():
            for name, value in by_name.items() if isinstance(by_name, Mapping) else ():
                found.setdefault(name, {} if step is None else {"step": torch.as_tensor(step)})
                found[name][key] = value
        if found and not set(found) & set(model):
            return {}, groups, ["optimizer: a form that names no weights; its moments are not told"]
        return found, groups, []
    state = optimizer["state"]
    names = names_of(state, model, optimizer.get("param_groups") or [])
    if len(names) < len(state):
        return {}, groups, ["optimizer: which of its numbers is which parameter cannot be told"]
    found = {names[key]: {} for key in state}
    left: dict[str, None] = {}
    for key, held in state.items():
        for k, value in held.items():
            if (
                k == "step"
                or is_moment(value)
                or getattr(value, "shape", 0) == model[names[key]].shape
            ):
                found[names[key]][k] = torch.as_tensor(value)
            elif value is not None:
                left[k] = None
    lost = [f"optimizer: {', '.join(left)}: not of a weight's shape"] if left else []
    return found, groups, lost


def is_moment(value: Any) -> bool:
    """Whether it is a moment: a tensor with a shape."""
    return isinstance(value, Tensor) and value.dim() > 0


def names_of(
    state: Mapping[Any, Any],
    model: Mapping[str, Tensor],
    groups: Sequence[Mapping[str, Any]] = (),
) -> dict[Any, str]:
    """The parameter of each entry: its own name, or the weights in order where the shapes fit.

    Empty where the numbers could be other parameters as well: of several groups, of a part of the
    weights.
    """
    if all(isinstance(key, str) for key in state):
        return {key: key for key in state if key in model}
    told = {
        number: name
        for group in groups
        for number, name in zip(group.get("params", ()), group.get("param_names", ()), strict=False)
    }
    if all(told.get(key) in model for key in state):
        return {key: told[key] for key in state}
    weights = weights_of(model)
    numbers = [number for group in groups for number in group.get("params", ())] or sorted(state)
    shapes = [shape_of(state.get(number, {})) for number in numbers]
    if sum(bool(group.get("params")) for group in groups) > 1:
        places = [[w for w in weights if model[w].shape == shape] for shape in shapes]
        certain = all(len(place) == 1 for place in places)
        found = [place[0] for place in places] if certain else []
    else:
        found = fit_shapes(shapes, weights, model)
        last = fit_shapes(shapes[::-1], weights[::-1], model)[::-1]
        found = found if found == last else []
    return {number: name for number, name in zip(numbers, found, strict=False) if number in state}


def weights_of(model: Mapping[str, Tensor]) -> list[str]:
    """Names of what may be trained, in order; of tied weights, which are one memory, the first."""
    found: dict[Any, str] = {}
    for name, value in model.items():
        if value.is_floating_point() and name.rpartition(".")[2] not in BUFFERS:
            found.setdefault((value.data_ptr() or name, value.shape), name)
    return list(found.values())


def shape_of(held: Mapping[str, Any]) -> torch.Size | None:
    """The shape of an entry's moments; None where it has none."""
    return next((value.shape for value in held.values() if is_moment(value)), None)


def fit_shapes(
    shapes: Sequence[torch.Size | None], weights: Sequence[str], model: Mapping[str, Tensor]
) -> list[str]:
    """The first weights in their order that have these shapes; empty where they do not."""
    names = iter(weights)
    found = []
    for shape in shapes:
        name = next((one for one in names if shape in (None, model[one].shape)), None)
        if name is None:
            return []
        found.append(name)
    return found
