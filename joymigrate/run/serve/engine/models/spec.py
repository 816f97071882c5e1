"""What the decoder must know of a model, read from its configuration and `families.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate import files
from joymigrate.errors import JoyError

FILE = Path(__file__).with_name("families.yaml")
SCHEMA = "joymigrate.families/1"
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
}
THETA = 10_000.0
MOST = 1 << 31  # of any size in a configuration
# What transformers' configurations call their sizes.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HEADS = ("num_attention_heads", "n_head")
GROUPS = ("num_key_value_heads", "multi_query_group_num", "num_kv_heads")
WIDTHS = ("head_dim", "kv_channels")
HIDDEN = ("hidden_size", "n_embd")


@dataclass(frozen=True, slots=True)
class Spec:
    """A decoder: sizes, factors, and the names of its weights. `windows` and `rotates` by layer."""

    family: str
    config: Any  # of transformers
    names: Mapping[str, str | None]
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    positions: int
    eps: float
    activation: str
    windows: tuple[int | None, ...]
    rotates: tuple[bool, ...]
    interleaved: bool
    layout: str
    tied: bool
    norm_offset: float
    embed_scale: float
    residual_scale: float
    logit_divisor: float
    attention_scale: float
    softcap: float | None
    final_softcap: float | None
    normalised_head: bool
    starts_over: bool


@functools.cache
def families() -> Mapping[str, Any]:
    """The families of the decoder, by `model_type`."""
    import yaml

    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    if document.get("schema") != SCHEMA:
        raise JoyError("not a list of families", where=str(FILE), help=f"schema: {SCHEMA}")
    usual = document["names"]
    return {
        name: {**(entry or {}), "names": {**usual, **((entry or {}).get("names") or {})}}
        for name, entry in document["families"].items()
    }


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder. Raises `JoyError` when there is none."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise JoyError("there is no such model folder", where=str(folder))
    if not path.is_file():
        raise JoyError("the folder has no config.json, so it is no model", where=str(folder))
    read = files.read_json(path)
    if not isinstance(read, dict) or not isinstance(read.get("model_type"), str):
        raise JoyError("config.json names no model_type", where=str(path))
    check_config(read, str(path))
    return read


def check_config(read: Mapping[str, Any], where: str) -> None:
    """Raise `JoyError` for a value that no configuration can have, of those that are read before
    transformers sees them."""
    wanted = {"architectures": (list, "a list"), "text_config": (dict, "an object")}
    for name, (kind, said) in wanted.items():
        if read.get(name) is not None and not isinstance(read[name], kind):
            raise JoyError(f"{name} is {read[name]!r:.60}, but must be {said}", where=where)
    for table in (read, read.get("text_config") or {}):
        for name in (*LAYERS, *HEADS, *GROUPS, *WIDTHS, *HIDDEN, "max_position_embeddings"):
            value = table.get(name)
            for size in value if isinstance(value, list) else [value]:  # one for each layer
                if size is not None and not (type(size) is int and 0 <= size < MOST):
                    raise JoyError(f"{name} is {value!r:.60}, but must be a whole number",
                                   where=where)  # fmt: skip


def describe(raw: Mapping[str, Any]) -> tuple[Spec | None, str]:
    """The spec of a config.json, or None with the reason why the decoder is not for it."""
    kind = family_of(raw)
    entry = families().get(kind)
    if entry is None:
        return None, f"{kind} is not one of the decoder's families"
    if entry.get("require", "model_type") not in raw:
        return None, f"this {kind} has no {entry['require']}: it is of an older kind"
    config = configuration(kind, entry, raw)
    reason = why_not(kind, entry, config)
    return (None, reason) if reason else (spec_of(kind, entry, config), "")


def family_of(raw: Mapping[str, Any]) -> str:
    """`model_type`, or the family that the architecture's name begins with where it misleads."""
    kind = str(raw["model_type"]).lower()
    architecture = str((raw.get("architectures") or [""])[0]).lower()
    for name in ("baichuan", "internlm2", "chatglm"):
        if architecture.startswith(name):
            return name
    return kind


def configuration(kind: str, entry: Mapping[str, Any], raw: Mapping[str, Any]) -> Any:
    """The transformers configuration that a config.json means."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers import AutoConfig

    values = {key: value for key, value in raw.items() if key not in ("model_type", "auto_map")}
    if "as" in entry:
        for ours, theirs in (entry.get("keys") or {}).items():
            if theirs in raw:
                values[ours] = raw[theirs]
        values |= entry.get("set") or {}
        for name in entry.get("halve") or ():
            values[name] = int(values[name]) // 2
        if "theta" in entry:
            values["rope_theta"] = THETA * float(raw.get(entry["theta"]) or 1.0)
    try:
        return AutoConfig.for_model(entry.get("as", kind), **values)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise JoyError(f"config.json is not one of {kind}: {error}") from None
    except Exception as error:  # huggingface_hub validates with an exception of its own
        raise JoyError(f"config.json is not one of {kind}: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def why_not(kind: str, entry: Mapping[str, Any], config: Any) -> str:
    """Why the decoder cannot compute a model of one of its families; empty when it can."""
    refusal = entry.get("refuse") or {}
    for name, values in refusal.items():
        if name != "why" and getattr(config, name, None) in values:
            return f"{kind} with {name} {getattr(config, name)}: {refusal['why']}"
    activation = activation_of(entry, config)
    if activation not in ACTIVATIONS:
        return f"{kind} with the activation {activation}"
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, Mapping) or "rope_theta" not in parameters:
        return f"{kind} with a rotary embedding for each kind of layer"
    return ""


def activation_of(entry: Mapping[str, Any], config: Any) -> str:
    """The activation's name."""
    if "activation" in entry:
        return str(entry["activation"])
    return str(getattr(config, "hidden_act", None) or "silu")


def spec_of(kind: str, entry: Mapping[str, Any], config: Any) -> Spec:
    """The spec of a configuration that the decoder can compute."""
    heads, layers, hidden = (
        config.num_attention_heads,
        config.num_hidden_layers,
        config.hidden_size,
    )
    head_size = getattr(config, "head_dim", None) or hidden // heads
    scaled_by = entry.get("scale")
    base = getattr(config, scaled_by) if scaled_by else head_size
    scale = getattr(config, "attention_multiplier", None)
    root = hidden**0.5 if entry.get("embed_scale") == "root" else 1.0
    wanted = entry.get("normalised_head") or {}
    return Spec(
        family=kind,
        config=config,
        names=entry["names"],
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=head_size,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
        positions=positions(config),
        eps=config.rms_norm_eps,
        activation=ACTIVATIONS[activation_of(entry, config)],
        windows=windows(config, layers),
        rotates=tuple(bool(x) for x in getattr(config, "no_rope_layers", None) or [1] * layers),
        interleaved=bool(entry.get("interleaved")),
        layout=str(entry.get("layout", "stack")),
        tied=bool(config.tie_word_embeddings),
        norm_offset=float(entry.get("norm_offset", 0)),
        embed_scale=float(getattr(config, "embedding_multiplier", root)),
        residual_scale=float(getattr(config, "residual_multiplier", 1.0)),
        logit_divisor=float(getattr(config, "logits_scaling", 1.0)),
        attention_scale=float(base) ** -0.5 if scale is None else float(scale),
        softcap=getattr(config, "attn_logit_softcapping", None),
        final_softcap=getattr(config, "final_logit_softcapping", None),
        normalised_head=bool(wanted)
        and all(getattr(config, name, None) == value for name, value in wanted.items()),
        starts_over=bool(entry.get("starts_over")),
    )


def positions(config: Any) -> int:
    """The most tokens of a text. Linear and dynamic scaling count from the original length; the
    other kinds' configurations give the stretched one."""
    parameters = config.rope_parameters
    stretched = parameters.get("rope_type") in ("linear", "dynamic")
    return int(config.max_position_embeddings * (parameters["factor"] if stretched else 1))


def windows(config: Any, layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (window,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
