"""Tiny random models of every family, for trials against transformers."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.models.spec import families as decoder_families

FILE = Path(__file__).with_name("models") / "verified.yaml"
SCHEMA = "joymigrate.served/1"


@functools.cache
def document() -> Mapping[str, Any]:
    """What `verified.yaml` says."""
    import yaml

    read = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    if read.get("schema") != SCHEMA:
        raise JoyError("not a list of verified families", where=str(FILE))
    return read  # type: ignore[no-any-return]


def tiny(name: str, config: Mapping[str, Any], folder: Path) -> Any:
    """A tiny random model of a family, written to `folder`; returns what transformers computes."""
    kind = decoder_families().get(name, {}).get("as", name)
    return make_tiny(name, fitting(kind, config), folder)


def make_tiny(name: str, values: Mapping[str, Any], folder: Path) -> Any:
    """A random model with a configuration's `values`, written to `folder`."""
    import torch
    import transformers

    library: Any = transformers
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    entry = decoder_families().get(name, {})
    kind = entry.get("as", name)
    before = torch.random.get_rng_state()
    torch.manual_seed(0)
    try:
        made = library.AutoConfig.for_model(kind, **values)
        maker = library.AutoModelForCausalLM
        model = maker.from_config(made, attn_implementation="eager").float().eval()
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.15)
    finally:
        torch.random.set_rng_state(before)
    model.save_pretrained(folder)
    if "as" in entry:
        disguise(name, entry, folder)
    return model


def fitting(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The small sizes that a family's configuration knows, and its own values."""
    import dataclasses

    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    form = CONFIG_MAPPING[kind]
    known = {field.name for field in dataclasses.fields(form)} | set(form.attribute_map)
    small = {key: value for key, value in document()["small"].items() if key in known}
    return {**small, **config}


def disguise(name: str, entry: Mapping[str, Any], folder: Path) -> None:
    """Rewrite a folder as one of a family that is computed as another: its names in config.json
    and in the weights."""
    from safetensors.torch import load_file, save_file

    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "model.safetensors")
    usual, own = decoder_families()["llama"]["names"], entry["names"]
    glu = decoder_families().get(entry["as"], {}).get("names", usual)
    made: dict[str, Any] = {}
    for part in ("embed", "norm", "head"):
        if f"{usual[part]}.weight" in weights:
            made[f"{own[part]}.weight"] = weights[f"{usual[part]}.weight"]
    for i in range(raw["num_hidden_layers"]):
        theirs, mine = (names["layer"].format(i=i) + "." for names in (usual, own))
        for end in (".weight", ".bias"):
            for part in (
                "output",
                "gate",
                "up",
                "down",
                "before_attention",
                "before_mlp",
                "gate_up",
            ):
                source = weights.get(f"{theirs}{glu.get(part)}{end}")
                if source is not None and own.get(part):
                    made[f"{mine}{own[part]}{end}"] = source
            qkv = [weights.get(f"{theirs}{usual[p]}{end}") for p in ("queries", "keys", "values")]
            if qkv[0] is None:
                continue
            if own.get("qkv"):
                made[f"{mine}{own['qkv']}{end}"] = fuse(qkv, entry, raw)
            else:
                for part, tensor in zip(("queries", "keys", "values"), qkv, strict=True):
                    made[f"{mine}{own[part]}{end}"] = tensor
    save_file(
        {key: tensor.contiguous() for key, tensor in made.items()}, folder / "model.safetensors"
    )
    raw["model_type"], raw["architectures"] = name, [f"{name.title()}ForCausalLM"]
    for ours, its in (entry.get("keys") or {}).items():
        raw[its] = raw.pop(ours, raw.get("rope_parameters", {}).get(ours))
    for key in entry.get("halve") or ():
        raw[key] *= 2
    if "theta" in entry:
        raw[entry["theta"]] = raw["rope_parameters"]["rope_theta"] / 10_000.0
    raw.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")


def fuse(qkv: list[Any], entry: Mapping[str, Any], raw: Mapping[str, Any]) -> Any:
    """Queries, keys and values as one tensor, in a family's layout."""
    import torch

    if entry.get("layout") != "grouped":
        return torch.cat(qkv)
    groups = raw["num_key_value_heads"]
    size = qkv[1].shape[0] // groups
    per_group = [part.view(groups, -1, size, *part.shape[1:]) for part in qkv]
    return torch.cat(per_group, 1).flatten(0, 2)
