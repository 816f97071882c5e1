"""From a model folder to an engine: configuration, weights, tokenizer, and memory for the cache."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.adapter_layers import attach
from joymigrate.run.serve.engine.adapters import Adapters
from joymigrate.run.serve.engine.cache import Cache
from joymigrate.run.serve.engine.core import Engine, may_draft
from joymigrate.run.serve.engine.devices import card_of, device_of, dtype_of, free_memory
from joymigrate.run.serve.engine.draft_model import DraftModel
from joymigrate.run.serve.engine.memory import MOST_EMPTY, STATES_HELD
from joymigrate.run.serve.engine.models.model import CausalModel
from joymigrate.run.serve.engine.models.open import load_model
from joymigrate.run.serve.engine.models.spec import describe, read_config
from joymigrate.run.serve.engine.parallel import Team
from joymigrate.run.serve.engine.share import ProcessShare
from joymigrate.run.serve.engine.tokens import FolderTokens, NumberTokens, end_ids, load_tokens
from joymigrate.run.serve.engine.types import EngineOptions, ModelInfo

CPU_BLOCK = 16
CARD_BLOCK = 128  # the paged kernels of cards read blocks of 128 (and multiples of 16 or 256)
OTHER_WORDS = 0.05  # of a vocabulary: what families add to it between sizes


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine and what it was made of."""

    engine: Engine
    info: ModelInfo
    folder: Path
    device: Device
    team: Team | None = None


def load_engine(folder: str | Path, options: EngineOptions | None = None) -> Loaded:
    """Load a model folder. Raises `JoyError` when it cannot run as `options` say."""
    from joymigrate.chips import hide_driverless

    began = time.perf_counter()
    hide_driverless()
    folder = Path(folder)
    options = options or EngineOptions()
    raw = read_config(folder)
    device = device_of(options.device)
    dtype = dtype_of(options.dtype, raw, device)
    team = gather(folder, raw, options, device) if options.tensor_parallel > 1 else None
    share = team.share if team is not None else None
    with torch.inference_mode():
        model = load_model(folder, raw, dtype, card_of(device, options.device), options, share)
        small = load_small(options, dtype, device)
        cache, notes = make_cache(model, options, device, small)
    if team is not None:
        team.ready(cache)
    if model.stateful:
        notes = (*notes, f"{model.state_bytes} bytes of states a text")
    tokens = load_tokens(folder, trust_remote_code=options.trust_remote_code)
    ends = end_ids(folder, model.config, tokens)
    longest = min(model.positions, cache.blocks * cache.size, options.max_model_len or 1 << 60)
    if options.max_model_len and options.max_model_len > longest:
        raise JoyError(
            f"max_model_len is {options.max_model_len}, but the model takes {model.positions} "
            f"tokens and the cache holds {cache.blocks * cache.size}",
            help="a smaller --max-model-len, or more --kv-memory",
        )
    adapters = attach_adapters(model, options)
    forward: Any = team.forward(model, cache) if team is not None else None
    drafter = None
    if small is not None:
        same_words(tokens, load_tokens(Path(options.draft_model or "")), options)
        if not (may_draft(model) and may_draft(small)):
            raise JoyError(
                "there are no drafts where positions depend on the text's length, or on images, or "
                "where layers keep a state",
                help="leave --draft-model out",
            )
        room = Cache(
            small.shapes, cache.blocks, cache.size, small.dtype, small.device, options.attention,
            pretouch=options.pretouch,
        )  # fmt: skip
        drafter = DraftModel(small, room, options.max_batch_tokens, model.vocabulary)
    engine = Engine(
        model, cache, tokens, ends, options, longest, forward,
        adapters=adapters, free=device.empty_cache, may_retry=team is None, drafter=drafter,
    )  # fmt: skip
    if options.prompt_lookup and not engine.scheduler.drafts:
        why = "positions depend on the text's length, or on images, or layers keep a state"
        notes = (*notes, f"no prompt lookup: {why}")
    elif engine.scheduler.drafts:
        by = "prompt lookup" if options.prompt_lookup else f"the draft model {options.draft_model}"
        notes = (*notes, f"drafts of up to {engine.scheduler.drafts} tokens by {by}")
    info = ModelInfo(
        name=folder.resolve().name,
        family=model.family,
        path=model.path,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        parameters=model.parameters,
        weight_bytes=model.weight_bytes,
        kv_bytes=cache.bytes,
        block_size=cache.size,
        blocks=cache.blocks,
        max_model_len=longest,
        attention=cache.attention,
        linear=model.linear,
        quantisation=getattr(model, "quantisation", None),
        rehearsal=device.rehearsal,
        load_seconds=time.perf_counter() - began,
        notes=(*model.notes, *notes),
    )
    return Loaded(engine, info, folder, device, team)


def load_small(options: EngineOptions, dtype: torch.dtype, device: Device) -> CausalModel | None:
    """The draft model that `options` name, in the dtype of the other; raises `JoyError`."""
    if options.draft_model is None:
        return None
    if options.tensor_parallel > 1:
        raise JoyError("a draft model does not go with --tensor-parallel")
    folder = Path(options.draft_model)
    return load_model(folder, read_config(folder), dtype, card_of(device, options.device), options)


def same_words(
    ours: FolderTokens | NumberTokens, theirs: FolderTokens | NumberTokens, options: EngineOptions
) -> None:
    """Refuse a draft model whose ids mean other words: no draft of it would ever be right."""
    if ours.hf is None or theirs.hf is None:
        return
    here, there = ours.hf.get_vocab(), theirs.hf.get_vocab()
    other = sum(there.get(word) != number for word, number in here.items())
    if other > OTHER_WORDS * len(here):
        raise JoyError(
            f"{other} of the model's {len(here)} tokens have another id in the draft model",
            where=options.draft_model,
            help="a draft model has the same tokenizer: a smaller one of the same family",
        )


def attach_adapters(model: CausalModel, options: EngineOptions) -> Adapters:
    """Load the adapters that `options` name. Raises `JoyError`."""
    if not options.adapters:
        return Adapters()
    if options.compile or options.tensor_parallel > 1:
        raise JoyError("adapters go neither with --compile nor with --tensor-parallel")
    with torch.inference_mode():
        return attach(model, options.adapters)


def gather(folder: Path, raw: dict[str, Any], options: EngineOptions, device: Device) -> Team:
    """Start the other processes of a tensor-parallel engine, after what can be refused was."""
    spec, reason = describe(raw) if not options.generic else (None, "asked for transformers")
    if spec is None:
        raise JoyError(f"tensor parallel needs the decoder, but {reason}")
    ProcessShare(0, options.tensor_parallel).check(spec.heads, spec.kv_heads, spec.intermediate)
    if not device.is_cpu and options.tensor_parallel > device.count():
        raise JoyError(
            f"tensor parallel over {options.tensor_parallel} cards, but there are {device.count()}"
        )
    return Team(folder, options)


def make_cache(
    model: CausalModel, options: EngineOptions, device: Device, small: CausalModel | None = None
) -> tuple[Cache, tuple[str, ...]]:
    """Blocks for as many tokens as the memory allows, and can be used; the draft model `small`
    needs as many."""
    size = options.block_size or (CPU_BLOCK if device.is_cpu else CARD_BLOCK)
    width = torch.empty(0, dtype=model.dtype).element_size()
    both = (*model.shapes, *(small.shapes if small is not None else ()))
    per_block = size * width * sum(shape.numbers for shape in both)
    longest = min(model.positions, options.max_model_len or model.positions)
    useful = -(-longest // size) * options.max_running
    notes: tuple[str, ...] = ()
    if options.kv_blocks is not None:
        blocks = options.kv_blocks
    else:
        memory = options.kv_memory_bytes or free_memory(device)
        memory -= STATES_HELD * options.max_running * model.state_bytes
        blocks = min(useful, memory // per_block if per_block else MOST_EMPTY)
        if blocks * size < longest:
            notes = (f"memory for {blocks * size} of the model's {longest} tokens",)
    if blocks < 1:
        raise JoyError(
            f"there is no memory for one block of {size} tokens ({per_block} bytes)",
            help="--kv-memory, a smaller model, or a smaller --block-size",
        )
    cache = Cache(
        model.shapes, blocks, size, model.dtype, model.device, options.attention,
        pretouch=options.pretouch,
    )  # fmt: skip
    cache.order = getattr(model, "order", {})
    return cache, notes
