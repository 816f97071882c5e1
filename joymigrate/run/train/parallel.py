"""Lays a model out over the processes: tensor parallel, FSDP2, DDP, stages.

The model is built on the CPU (weights of a folder are mapped, not read) and cut down before it
moves, so a card holds its own part only. Plans (which layer is split how) come from the model:
transformers' `DistributedConfig`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.run.train.layout import Layout
from joymigrate.run.train.models import check_heads, unwrap

ALIGNMENT_BYTES = 4096  # what an allocator may add to a tensor of its own


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """A model in place. `module` is what is called, `model` what checkpoints and optimisers see."""

    model: Any
    module: Any
    layout: Layout
    device: Device
    mesh: Any
    dtype: Any  # of the computation, where it differs from the weights' (autocast), else None


def lay_out(
    model: Any, layout: Layout, device: Device, mesh: Any, dtype: Any = None
) -> ParallelModel:
    """Distribute `model`; `JoyError` with the reason when it has no plan for the layout."""
    inner = unwrap(model)
    if layout.tp > 1:
        split_layers(model, inner, layout, mesh)
    if layout.cp > 1:
        cut_sequences(inner, mesh["cp"].get_group())
    if layout.pp > 1:
        cut_stages(model, inner, layout, mesh)
    sharded = layout.fsdp > 1 or (layout.dp > 1 and layout.tp > 1)
    if sharded:
        shard(inner, layout, mesh, dtype)
    own_storage(model)
    model.to(device.at())
    if layout.fsdp > 1:
        check_sharded(inner)
    module = model
    if layout.dp * layout.cp > 1 and not sharded and layout.pp == 1:
        module = replicate(model, device)
    return ParallelModel(model, module, layout, device, mesh, None if sharded else dtype)


def plans(inner: Any, layout: Layout) -> tuple[dict[str, str], dict[str, str]]:
    """What the model says about tensor parallel and FSDP: module name → style."""
    from transformers.distributed.configuration_utils import DistributedConfig

    if not hasattr(inner, "_resolve_parallel_plans"):
        return {}, {}
    asked = DistributedConfig(tp_size=layout.tp, fsdp_size=layout.fsdp, dp_replicate_size=layout.dp)
    try:
        tp_plan, _, fsdp_plan = inner._resolve_parallel_plans(asked)
    except ValueError as error:
        raise JoyError(
            f"the model has no plan for layout {layout.name}: {' '.join(str(error).split())[:200]}",
            where="layout",
            help="dp works with every model",
        ) from None
    return tp_plan, fsdp_plan


def split_layers(model: Any, inner: Any, layout: Layout, mesh: Any) -> None:
    """Tensor parallel by the model's plan. Every rank cuts its slices; nothing is sent."""
    if model is not inner:
        raise JoyError(
            "LoRA is not split over tensor-parallel processes",
            where="layout.tp",
            help="use fsdp or dp with method lora",
        )
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    if not hasattr(inner, "_resolve_parallel_plans"):
        raise JoyError(f"{type(inner).__name__} has no tensor-parallel plan", where="layout.tp")
    check_heads(inner.config, layout.tp)
    untie(inner)
    plan, _ = plans(inner, Layout(tp=layout.tp))
    apply_tensor_parallelism(inner, mesh["tp"], plan)
    inner.tie_weights()


def untie(inner: Any) -> None:
    """Give a head that shares the embedding's weight a parameter of its own on the same memory,
    so that both are split by their rules; `tie_weights` joins the slices again."""
    from torch import nn

    head, embedding = inner.get_output_embeddings(), inner.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        head.weight = nn.Parameter(embedding.weight.data)


def cut_stages(model: Any, inner: Any, layout: Layout, mesh: Any) -> None:
    """Drop the layers of other pipeline stages."""
    from transformers.distributed.pipeline_parallel import apply_pipeline_parallelism

    base: Any = getattr(inner, getattr(inner, "base_model_prefix", ""), None)
    wanted = ("layers", "embed_tokens", "norm")
    missing = [name for name in wanted if not hasattr(base, name)]
    if model is not inner or missing or not hasattr(inner, "lm_head"):
        why = "an adapter" if model is not inner else f"no {', '.join(missing) or 'lm_head'}"
        raise JoyError(
            f"{type(inner).__name__} cannot be cut into stages: it has {why}",
            where="layout.pp",
            help="use fsdp or tp",
        )
    if len(base.layers) < layout.pp:
        raise JoyError(
            f"{len(base.layers)} layers do not fill {layout.pp} stages", where="layout.pp"
        )
    forward = inner.forward
    apply_pipeline_parallelism(inner, mesh["pp"])
    inner.forward = forward  # transformers' own is for inference


def cut_sequences(inner: Any, group: Any) -> None:
    """Every process of `group` computes a part of each sequence's events."""
    dense: Any = getattr(inner, "dense", None)
    if not hasattr(dense, "cut_over"):
        kind = getattr(inner, "sizes", {}).get("model_type", type(inner).__name__)
        raise JoyError(
            f"'{kind}' does not cut its sequences over processes", where="layout.cp",
            help="hstu does; dp, fsdp and tp know more models",
        )  # fmt: skip
    dense.cut_over(group)


def shard(inner: Any, layout: Layout, mesh: Any, dtype: Any) -> None:
    """FSDP2 by the model's plan, else by its lists of layers. `dtype`: of the computation."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    grid = mesh["dp_replicate", "fsdp"] if layout.dp > 1 else mesh["fsdp"]
    if layout.cp > 1:
        grid = mesh["cp", "fsdp"]
    policy = MixedPrecisionPolicy()
    if dtype is not None:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    _, plan = plans(inner, Layout(fsdp=layout.fsdp, dp=layout.dp))
    if not plan:
        plan = dict.fromkeys(layer_names(inner), "free_full_weight")
    kept = [inner.get_submodule(name) for name, how in plan.items() if how == "keep_full_weight"]
    tied = tied_pair(inner)
    if tied:  # a shared weight lies in one group
        plan = {n: how for n, how in plan.items() if inner.get_submodule(n) not in tied}
        kept = [*(module for module in kept if module not in tied), *tied]
    for name, how in plan.items():
        if how != "keep_full_weight":
            fully_shard(inner.get_submodule(name), mesh=grid, mp_policy=policy)
    if kept:  # the last norm and the head: used one after the other, so gathered together
        fully_shard(kept, mesh=grid, mp_policy=policy, reshard_after_forward=False)
    fully_shard(inner, mesh=grid, mp_policy=policy)
    if hasattr(inner, "tie_weights"):
        inner.tie_weights()


def tied_pair(inner: Any) -> list[Any]:
    """The embedding and the head where they share one weight, else nothing."""
    if not hasattr(inner, "get_output_embeddings"):
        return []
    head, embedding = inner.get_output_embeddings(), inner.get_input_embeddings()
    shared = head is not None and embedding is not None and head.weight is embedding.weight
    return [embedding, head] if shared else []


def layer_names(model: Any) -> Iterator[str]:
    """Members of module lists: the repeated layers of a model without a plan."""
    from torch import nn

    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList):
            for key, layer in module.named_children():
                if any(True for _ in layer.parameters()):
                    yield f"{name}.{key}"


def own_storage(model: Any) -> None:
    """Give every parameter memory of its own.

    Slices of mapped weights are views into the file's storage. A checkpoint copies whole storages,
    which fails for these ("invalid python storage"), and they would hold the file's memory.
    """
    import torch
    from torch.distributed.tensor import DTensor

    for parameter in model.parameters():
        local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter.data
        storage = local.untyped_storage()
        spare = storage.nbytes() - local.numel() * local.element_size()
        mapped = local.device.type == "cpu" and storage.filename is not None
        if not mapped and spare <= ALIGNMENT_BYTES:
            continue
        copied = torch.empty_like(local, memory_format=torch.contiguous_format).copy_(local)
        if isinstance(parameter, DTensor):
            parameter._local_tensor = copied
        else:
            parameter.data = copied


def check_sharded(inner: Any) -> None:
    """FSDP means sharded: every parameter is a DTensor, never a full copy in silence."""
    from torch.distributed.tensor import DTensor

    plain = [name for name, p in inner.named_parameters() if not isinstance(p, DTensor)]
    if plain:
        raise JoyError(f"fsdp did not shard {plain[0]} and {len(plain) - 1} more parameters")


def replicate(model: Any, device: Device) -> Any:
    """DDP over all processes."""
    from torch.nn.parallel import DistributedDataParallel

    cards = None if device.is_cpu else [device.current()]
    return DistributedDataParallel(
        model, device_ids=cards, gradient_as_bucket_view=True, **no_buffer_sync()
    )


def no_buffer_sync() -> dict[str, Any]:
    """DDP's option against sending buffers in every forward pass, by its name in this torch."""
    from torch.nn.parallel import DistributedDataParallel

    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
    }
