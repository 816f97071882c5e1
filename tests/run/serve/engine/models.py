"""Tiny models with random weights, and what transformers makes of the same prompts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from joymigrate.chips import hide_driverless

hide_driverless()

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from joymigrate.run.serve.engine.core import Engine  # noqa: E402
from joymigrate.run.serve.engine.types import EngineOutput, Request, Sampling  # noqa: E402

torch.set_num_threads(1)  # tiny products are slower on two
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
VOCABULARY = 97
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


def save(
    folder: Path, kind: str = "qwen2", *, seed: int = 0, shard: str | None = None, **more: Any
) -> Any:
    """A tiny model of a family, written to `folder`; returns the model in float32."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**SMALL, **more})
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
        elif weight.dim() == 1 and weight.abs().sum() == 0:
            torch.nn.init.normal_(weight, std=0.05)  # biases that would hide a missing one
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    return model


def prompts(lengths: Iterable[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of the given lengths."""
    source = random.Random(seed)
    return [[source.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


def expected(model: Any, ids: list[int], count: int) -> list[int]:
    """The greedy continuation that transformers computes for one prompt alone."""
    with torch.inference_mode():
        made = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)
    return made[0, len(ids) :].tolist()  # type: ignore[no-any-return]


def greedy(count: int, **more: Any) -> Sampling:
    """Greedy sampling of `count` tokens."""
    return Sampling(max_tokens=count, temperature=0, **more)


def drain(engine: Engine) -> dict[tuple[str, int], list[EngineOutput]]:
    """Every output until nothing is left, by request and index."""
    found: dict[tuple[str, int], list[EngineOutput]] = {}
    while not engine.idle:
        for output in engine.step():
            found.setdefault((output.request_id, output.index), []).append(output)
    return found


def tokens(outputs: list[EngineOutput]) -> list[int]:
    """The tokens of one text's outputs."""
    return [token for output in outputs for token in output.new_ids]


def run(engine: Engine, asked: list[list[int]], sampling: Sampling) -> list[list[int]]:
    """The continuations of prompts that are asked for at once."""
    for i, ids in enumerate(asked):
        engine.add(Request(str(i), tuple(ids), sampling))
    found = drain(engine)
    return [tokens(found[str(i), 0]) for i in range(len(asked))]
