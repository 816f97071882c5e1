"""The memory of a start, planned from headers: weights, states, KV blocks, and what is left."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.models.spec import GROUPS, HEADS, HIDDEN, LAYERS, WIDTHS
from joymigrate.run.serve.engine.preflight import (
    FAIL,
    OK,
    WARN,
    MemoryPlan,
    StartFinding,
    StartRequest,
    told_by,
)
from joymigrate.run.train.formats.tensors import read_header, read_index

if TYPE_CHECKING:
    from joymigrate.chips import Chip

MIB, GIB = 2**20, 2**30
USABLE = 0.9  # share of a card that the engine may fill
RUNTIME_BYTES = 800 * MIB  # torch, its workspaces, activations of one step
FLOATS = ("F64", "F32", "F16", "BF16")
BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}
STATES_HELD = 3  # of each text: before a step, behind it, and one in the prefix cache
MOST_EMPTY = 1 << 17  # blocks of a model that keeps no keys and values: they only count tokens


def plan(
    wanted: StartRequest, config: Mapping[str, Any]
) -> tuple[MemoryPlan, tuple[StartFinding, ...]]:
    """Weights, states, KV blocks, and what is left."""
    options = wanted.options
    dtype = options.dtype if options.dtype != "auto" else dtype_of(config)
    share = options.tensor_parallel
    weights = math.ceil(weight_bytes(wanted.folder, dtype) / share)
    state, per_token, findings = size_kept(wanted, config, dtype)
    states = STATES_HELD * options.max_running * state
    per_token = math.ceil(per_token / share)
    length = options.max_model_len or int(config.get("max_position_embeddings") or 4096)
    block = options.block_size or (16 if wanted.chip is None else 128)
    total = card_bytes(wanted)
    blocks: int | None = options.kv_blocks
    left = options.kv_memory_bytes
    if left is None and total is not None:
        left = int(total * USABLE) - weights - RUNTIME_BYTES
    if blocks is None and left is not None:
        left -= states
        most = min(MOST_EMPTY, math.ceil(length / block) * options.max_running)
        blocks = max(0, left // (block * per_token) if per_token else most if left > 0 else 0)
    tokens = None if blocks is None else blocks * block
    memory = MemoryPlan(
        total, weights, RUNTIME_BYTES, per_token, block, blocks, tokens, length, state, states
    )
    return memory, (*findings, judge_plan(memory, dtype, share))


def size_kept(
    wanted: StartRequest, config: Mapping[str, Any], dtype: str
) -> tuple[int, int, tuple[StartFinding, ...]]:
    """Bytes of states of a text, bytes of keys and values of a token, and what is not known."""
    per_token = kv_bytes(config, dtype)
    if (
        importlib.util.find_spec("torch") is None
        or importlib.util.find_spec("transformers") is None
    ):
        return 0, per_token, ()  # the check of versions tells it
    import torch

    from joymigrate.run.serve.engine.models import layer_plan, spec

    if spec.describe(config)[0] is not None and not wanted.options.generic:
        return 0, per_token, ()
    try:
        found = layer_plan.kept_by(wanted.folder, getattr(torch, dtype))
    except JoyError as error:
        return 0, per_token, (StartFinding("states", WARN, told_by(error), error.help or ""),)
    if found is None:
        return 0, per_token, ()
    return found.state_bytes, per_token // layers_of(config) * found.attending, ()


def judge_plan(memory: MemoryPlan, dtype: str, share: int) -> StartFinding:
    """Whether the plan holds, and what helps when not."""
    where = "on one card" if share == 1 else f"on each of {share} cards"
    said = (
        f"weights {size(memory.weights)} as {dtype} {where}, KV cache "
        f"{size(memory.kv_per_token * memory.block_size)} per block of {memory.block_size} tokens"
    )
    fewer = ""
    if memory.states:
        said += f", states {size(memory.state_per_text)} a text ({size(memory.states)} in all)"
        fewer = "a smaller --max-running, "
    if memory.total is None:
        return StartFinding(
            "memory", WARN, f"{said}; the card's memory is not known",
            "name its model with --sku, or give --kv-memory BYTES",
        )  # fmt: skip
    said += f"; {size(memory.total)} in all"
    if memory.blocks == 0:
        needed = memory.weights + RUNTIME_BYTES + memory.kv_per_token * memory.max_model_len
        needed += memory.states
        cards = math.ceil(needed / (memory.total * USABLE))
        more = "" if memory.states else f"--tensor-parallel {max(2, cards * share)}, "
        return StartFinding(
            "memory", FAIL, f"{said}: no room for a KV cache",
            f"{fewer}{more}--dtype bfloat16, or quantised weights (joymigrate quantise)",
        )  # fmt: skip
    tokens = memory.tokens or 0
    said += f": room for {tokens} tokens"
    if tokens < memory.max_model_len:
        return StartFinding(
            "memory", FAIL, f"{said}, fewer than one text of {memory.max_model_len}",
            f"--max-model-len {max(memory.block_size, tokens)}, {fewer}more cards, or quantised "
            "weights",
        )  # fmt: skip
    return StartFinding(
        "memory", OK, f"{said}, {tokens // memory.max_model_len} texts of full length"
    )


def size(count: int) -> str:
    """Bytes for people."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.1f} MiB" if count >= MIB else f"{count / 1024:.1f} KiB"


def named_dtype(config: Mapping[str, Any]) -> str:
    """The data type that a configuration, or its part for text, names; else float32."""
    tables = (config, config.get("text_config") or {})
    names = (table.get(key) for table in tables for key in ("dtype", "torch_dtype"))
    return str(next(filter(None, names), "float32"))


def dtype_of(config: Mapping[str, Any]) -> str:
    """The data type that the configuration names."""
    named = named_dtype(config)
    return named if named in BYTES_OF else "float32"


def weight_bytes(folder: Path, dtype: str) -> int:
    """Bytes of the weights in memory: floating ones in `dtype`, others as they are on disk."""
    total = 0
    for path in weight_files(folder):
        table = read_header(path)[0]
        table.pop("__metadata__", None)
        for entry in table.values():
            first, last = entry["data_offsets"]
            floating = entry["dtype"] in FLOATS
            total += math.prod(entry["shape"]) * BYTES_OF[dtype] if floating else last - first
    return total


def weight_files(folder: Path) -> list[Path]:
    """The files that the engine would read: those of the index where there is one."""
    index = next(iter(sorted(folder.glob("*.safetensors.index.json"))), None)
    if index is not None:
        return sorted(set(read_index(folder, index).values()))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise JoyError(
            "the folder has no safetensors weights", where=str(folder),
            help="load the model with transformers and save_pretrained() it",
        )  # fmt: skip
    return files


def kv_bytes(config: Mapping[str, Any], dtype: str) -> int:
    """Bytes of keys and values of one token over all layers.

    By the names that transformers' configurations agree on; latent attention keeps less.
    """
    heads = size_of(config, HEADS) or 1
    groups = size_of(config, GROUPS) or heads
    width = size_of(config, WIDTHS) or (size_of(config, HIDDEN) or heads) // heads
    return 2 * layers_of(config) * groups * width * BYTES_OF[dtype]


def layers_of(config: Mapping[str, Any]) -> int:
    """The number of layers."""
    return size_of(config, LAYERS) or 1


def size_of(config: Mapping[str, Any], names: Sequence[str]) -> int:
    """A size under the first of its names that is there; the largest where each layer has one of
    its own; 0 without any."""
    text = config.get("text_config") or config
    found = next((text[name] for name in names if text.get(name)), 0)
    return int(max(size or 0 for size in found) if isinstance(found, list) else found)


def card_bytes(wanted: StartRequest) -> int | None:
    """Memory of one card: by the model named, by the card that is there, or of the host."""
    if wanted.chip is None:
        if importlib.util.find_spec("psutil") is None:
            return None
        import psutil

        return int(psutil.virtual_memory().available)
    if wanted.sku is not None:
        return sku_bytes(wanted.chip, wanted.sku)
    from joymigrate.device import Device, why_not

    if why_not(wanted.chip) is not None:
        return None
    device = Device(wanted.chip.device, wanted.chip.name, wanted.chip.backend)
    return device.memory().total


def sku_bytes(chip: Chip, name: str) -> int | None:
    """Memory of a named model; raises `JoyError` for an unknown one."""
    for sku in chip.skus:
        if name.lower() in (word.lower() for word in (sku.name, *sku.match)):
            return None if sku.memory_gib is None else int(sku.memory_gib * GIB)
    known = ", ".join(sku.name for sku in chip.skus)
    raise JoyError(f"{chip.title} has no model '{name}'", help=f"--sku: one of {known}")
