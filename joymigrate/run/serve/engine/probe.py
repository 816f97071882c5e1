"""Tries a model beyond its limits before it is served: a shrunk copy of its own configuration.

What a short text never reaches is where engines are wrong in silence: sliding windows, attention
in chunks, rotary embeddings that change with the length. The copy keeps every switch of the
configuration, with small sizes, random weights and limits of a few tokens. Its greedy texts, which
cross all limits, must be those of transformers: alone and together, with prompts in pieces and
whole, with and without the prefix cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError

LIMIT = 8  # tokens of a shrunk window or chunk
ORIGINAL = 16  # tokens of a shrunk length that a rotary embedding was trained for
LENGTHS = (20, 5, 33, 13)  # below and above each limit, and across them while growing
COUNT = 10
WIDTH = 64  # positions of the copy
FEW = 8  # layers at most
WINDOWS = ("sliding_window", "attention_chunk_size", "keep_window_size", "attention_window_size")
LEFT_OUT = frozenset(
    ("architectures", "dtype", "torch_dtype", "transformers_version", "auto_map", "_name_or_path",
     "quantization_config", "model_type", "bos_token_id", "eos_token_id", "pad_token_id",
     "attn_implementation", "_attn_implementation", "id2label", "label2id")
)  # fmt: skip
# How the engine is set, and how often it is asked: the second time the prefixes are in its cache.
WAYS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"max_batch_tokens": 512}, 2),
    ({"max_batch_tokens": 7}, 2),
    ({"max_batch_tokens": 7, "prefix_cache": False}, 1),
)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe found. `passed` None: it could not be tried, `reason` says why."""

    passed: bool | None
    reason: str = ""
    covered: tuple[str, ...] = ()


def shrink(raw: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a small configuration that has the switches of `raw`, without its `model_type`."""
    values = {key: value for key, value in raw.items() if key not in LEFT_OUT}
    layers = int(values.get("num_hidden_layers") or values.get("n_layer") or 2)
    kept = layers_kept(values, layers)
    for key, value in list(values.items()):
        if isinstance(value, list) and len(value) == layers:
            values[key] = value[:kept]
    heads, groups = values.get("num_attention_heads"), values.get("num_key_value_heads")
    for key, value in small.items():
        if key in values and value is not None:
            values[key] = value
    if values.get("kv_lora_rank"):  # latent attention: its sizes belong together
        latent = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8,
                  "qk_rope_head_dim": 8, "v_head_dim": 12, "head_dim": 8, "qk_head_dim": 16,
                  "n_group": 2, "topk_group": 1}  # fmt: skip
        values |= {key: size for key, size in latent.items() if values.get(key)}
    values.update({key: kept for key in ("num_hidden_layers", "n_layer") if key in values})
    shrink_states(values, kept)
    if heads and groups:
        values["num_key_value_heads"] = 4 if groups == heads else 1 if groups == 1 else 2
    if "max_window_layers" in values:
        values["max_window_layers"] = min(int(values["max_window_layers"] or 0), kept // 2)
    for key in WINDOWS:
        if isinstance(values.get(key), int):
            values[key] = LIMIT
    shrink_rotation(values)
    for key in ("max_position_embeddings", "n_positions"):
        if key in values:
            values[key] = WIDTH
    if rotation_of(values).get("type", rotation_of(values).get("rope_type")) == "dynamic":
        values["max_position_embeddings"] = ORIGINAL
    return {**values, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def shrink_states(values: dict[str, Any], kept: int) -> None:
    """Shrink the sizes of layers with states, which belong together: heads of 16, 8 numbers a
    state, chunks of 4 tokens."""
    wide = int(values.get("expand") or values.get("mamba_expand") or 2) * int(
        values.get("hidden_size") or 64
    )
    sizes = {"state_size": 8, "mamba_d_state": 8, "ssm_state_size": 8, "mamba_d_ssm": wide,
             "mamba_d_head": 16, "mamba_n_heads": wide // 16, "mamba_head_dim": 16,
             "mamba_num_heads": wide // 16, "mamba_chunk_size": 4, "mamba_dt_rank": 4,
             "time_step_rank": 4, "linear_key_head_dim": 16,
             "linear_value_head_dim": 16}  # fmt: skip
    found: dict[str, Any] = {key: size for key, size in sizes.items() if values.get(key)}
    if "state_size" in found and values.get("num_heads"):
        found["num_heads"] = wide // 16
    if any(key.endswith(("state_size", "d_state")) for key in found):
        found |= {"chunk_size": 4} if values.get("chunk_size") else {}
        for key in ("n_groups", "mamba_n_groups"):
            if values.get(key):
                found[key] = min(2, int(values[key]))
    keys, heads = (values.get(f"linear_num_{name}_heads") for name in ("key", "value"))
    if keys and heads:
        found |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2 if keys == heads else 4}
    if values.get("attn_layer_indices"):
        found["attn_layer_indices"] = [kept - 1]
    values.update(found)


def layers_kept(values: Mapping[str, Any], layers: int) -> int:
    """The fewest first layers in which every kind of layer occurs."""
    kept = 2
    for value in values.values():
        if isinstance(value, list) and len(value) == layers:
            kinds = {json.dumps(item) for item in value}
            seen: set[str] = set()
            for place, item in enumerate(value, 1):
                seen.add(json.dumps(item))
                if seen == kinds:
                    kept = max(kept, place)
                    break
    for key in ("sliding_window_pattern", "no_rope_layer_interval", "full_attention_interval",
                "attn_layer_period", "expert_layer_period"):  # fmt: skip
        if isinstance(values.get(key), int):
            kept = max(kept, int(values[key]))
    return min(kept, layers, FEW)


def rotation_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The table that says how positions rotate; empty where there is none."""
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(values.get(key), dict):
            return dict(values[key])
    return {}


def shrink_rotation(values: dict[str, Any]) -> None:
    """Shrink the lengths inside the rotary embedding's parameters, and its lists of factors."""
    if isinstance(values.get("original_max_position_embeddings"), int):
        values["original_max_position_embeddings"] = ORIGINAL
    size = values.get("head_dim")
    size = size or values["hidden_size"] // (values.get("num_attention_heads") or 1)
    share = float(values.get("partial_rotary_factor") or 1.0)
    for key in ("rope_parameters", "rope_scaling"):
        table = values.get(key)
        if not isinstance(table, dict):
            continue
        made = dict(table)
        if "original_max_position_embeddings" in made:
            made["original_max_position_embeddings"] = ORIGINAL
        wanted = int(size * float(made.get("partial_rotary_factor") or share)) // 2
        for name in ("short_factor", "long_factor"):
            factors = made.get(name)
            if isinstance(factors, list) and factors:
                made[name] = [factors[i * len(factors) // wanted] for i in range(wanted)]
        values[key] = made


def list_covered(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Which limits the copy has, in words."""
    found = [f"{key} {values[key]}" for key in WINDOWS if values.get(key)]
    table = rotation_of(values)
    kinds = [table, *(part for part in table.values() if isinstance(part, dict))]
    for part in kinds:
        kind = part.get("rope_type") or part.get("type")
        if kind and kind != "default":
            found.append(f"rotary embedding '{kind}'")
    return (*dict.fromkeys(found), "packed", "in pieces", "prefix cache")


def probe(raw: Mapping[str, Any], *, generic: bool = False) -> ProbeResult:
    """Try a shrunk copy of a configuration against transformers."""
    from joymigrate.chips import hide_driverless
    from joymigrate.run.serve.engine.models.states import keeps_states
    from joymigrate.run.serve.engine.tiny_models import document, make_tiny

    hide_driverless()
    try:
        values = shrink(raw, document()["small"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return ProbeResult(
            None, f"its configuration cannot be shrunk ({type(error).__name__}: {error})"
        )
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(made)
        try:
            model = make_tiny(str(raw["model_type"]), values, folder)
            asked = prompts(model)
            want = [continue_text(model, ids, COUNT) for ids in asked]
        except Exception as error:  # a configuration's own checks raise what they like
            text = str(error).strip().splitlines()
            return ProbeResult(
                None, f"no small copy of it can be made ({text[0] if text else error!r})"
            )
        wrong = compare(asked, want, folder, generic=generic)
    words = list_covered(values)
    if keeps_states(type(model)):
        words = (*words, "states")
    return ProbeResult(not wrong, wrong, words)


def try_beyond_limits(folder: Path, *, generic: bool = False) -> str:
    """What a shrunk copy of a folder's configuration showed. Raises `JoyError` when its texts are
    not those of transformers."""
    from joymigrate.run.serve.engine.models.spec import read_config

    raw = read_config(folder)
    found = check(raw, generic=generic)
    if found.passed is None:
        return f"not tried beyond its limits: {found.reason}"
    if not found.passed:
        raise JoyError(
            f"{raw['model_type']} would give wrong tokens: {found.reason}",
            where=str(folder / "config.json"),
            help="serve it with an engine that has it, for example serve --engine vllm; "
            "--no-probe serves it all the same",
        )
    return f"tried as a shrunk copy against transformers: {', '.join(found.covered)}"


def check(raw: Mapping[str, Any], *, generic: bool = False) -> ProbeResult:
    """`probe`, remembered for this code and these libraries in the user's cache."""
    from joymigrate.files import replace_file

    path = remembered_at(raw, generic)
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return ProbeResult(saved["passed"], saved["reason"], tuple(saved["covered"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = probe(raw, generic=generic)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(found)).encode())
    return found


def remembered_at(raw: Mapping[str, Any], generic: bool) -> Path:
    """Where what was found about a configuration is kept."""
    import importlib.metadata

    digest = hashlib.sha256(json.dumps([raw, generic], sort_keys=True, default=str).encode())
    for name in ("torch", "transformers"):
        digest.update(importlib.metadata.version(name).encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "joymigrate" / "serve-probes" / f"{digest.hexdigest()[:24]}.json"


def prompts(model: Any) -> list[list[int]]:
    """Prompts below and above the limits; the last begins as another one does."""
    source = random.Random(0)
    width = int(model.config.get_text_config(decoder=True).vocab_size)
    asked = [[source.randrange(width) for _ in range(length)] for length in LENGTHS]
    return [*asked, [*asked[2][:24], *asked[0][:3]]]


def compare(
    asked: list[list[int]], want: list[list[int]], folder: Path, *, generic: bool = False
) -> str:
    """How the engine's texts differ from those that are wanted; empty when they do not."""
    from joymigrate.run.serve.engine.load import load_engine
    from joymigrate.run.serve.engine.types import EngineOptions

    for way, times in WAYS:
        options = EngineOptions(dtype="float32", block_size=4, kv_blocks=96, generic=generic, **way)
        try:
            engine = load_engine(folder, options).engine
        except JoyError as error:
            return f"a shrunk copy is refused: {error.what}"
        for attempt in range(times):
            if wrong := first_difference(asked, want, texts(engine, asked, COUNT, attempt)):
                shown = ", ".join(f"{key} {value}" for key, value in way.items())
                turn = "prefix cached" if attempt else "first time"
                return f"{wrong} in a shrunk copy ({shown}, {turn})"
    return ""


def first_difference(asked: list[list[int]], want: list[list[int]], got: list[list[int]]) -> str:
    """The first token that is not the wanted one, in words; empty where all are."""
    for ids, right, wrong in zip(asked, want, got, strict=True):
        for place in range(max(len(right), len(wrong))):
            one, other = wrong[place : place + 1], right[place : place + 1]
            if one != other:
                return f"token {place + 1} after {len(ids)} is {one} instead of {other}"
    return ""


def texts(engine: Any, asked: list[list[int]], count: int, attempt: int = 0) -> list[list[int]]:
    """What the engine continues all prompts with, computed together."""
    from joymigrate.run.serve.engine.types import Request, Sampling

    sampling = Sampling(max_tokens=count, temperature=0, ignore_eos=True)
    for i, ids in enumerate(asked):
        engine.add(Request(f"{attempt}-{i}", tuple(ids), sampling))
    got: list[list[int]] = [[] for _ in asked]
    while not engine.idle:
        for output in engine.step():
            if output.finish_reason == "error":
                raise JoyError(str(output.error))
            got[int(output.request_id.partition("-")[2])] += output.new_ids
    return got


def continue_text(model: Any, ids: list[int], count: int) -> list[int]:
    """What transformers' `generate` appends."""
    import torch

    with torch.inference_mode():
        made = model.generate(
            torch.tensor([ids]), max_new_tokens=count, do_sample=False, use_cache=True
        )
    found: list[int] = made[0, len(ids) :].tolist()
    return found
