"""Which families are served: each tried with a tiny random model against transformers.

`verified.yaml` keeps what was found, for `serve models`; `verify_families` finds it again. A
family is verified when every text of a mixed batch, with prompts in chunks and sequences that
start over, continues greedily as `transformers.generate` continues it alone, in float32. Families
whose code is not in transformers are tried with the weights of the family that they are computed
as, under their own names.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.serve.engine.models.spec import families as decoder_families

FILE = Path(__file__).with_name("models") / "verified.yaml"
SCHEMA = "joymigrate.served/1"
LENGTHS = (30, 7, 1, 17)
COUNT = 12
TIGHT = {"max_batch_tokens": 24, "kv_blocks": 24, "block_size": 4, "max_model_len": 60}


@dataclass(frozen=True, slots=True)
class Family:
    """A family and how it fared: `pass`, `fail`, or `refused` with the reason."""

    name: str
    status: str
    path: str = ""  # decoder or transformers
    reason: str = ""
    tokens: int = 0  # different tokens in what was compared: few would prove little


@functools.cache
def document() -> Mapping[str, Any]:
    """What `verified.yaml` says."""
    import yaml

    read = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    if read.get("schema") != SCHEMA:
        raise JoyError("not a list of verified families", where=str(FILE))
    return read  # type: ignore[no-any-return]


def verified() -> list[Family]:
    """The families that were verified, and those that are refused, from the list."""
    listed = document()
    found = [
        Family(name, "pass", (entry or {}).get("path", "transformers"))
        for name, entry in listed["families"].items()
    ]
    found += [Family(name, "pass", "transformers, with images") for name in listed["images"]]
    found += [Family(name, "refused", reason=reason) for name, reason in listed["refused"].items()]
    return sorted(found, key=lambda family: family.name)


def versions() -> str:
    """With which transformers the list was made."""
    return str(document()["transformers"])


def verify_families(names: Iterable[str] | None = None) -> Iterator[Family]:
    """Try families, all that are listed as verified by default, and yield how each fared.

    An unknown name raises `JoyError`.
    """
    listed = document()["families"]
    for name in listed if names is None else names:
        if name not in listed:
            raise JoyError(
                f"'{name}' is not a family that is served.{did_you_mean(name, listed)}",
                help="joymigrate serve models",
            )
        config = (listed[name] or {}).get("config") or {}
        yield verify(name, config, further=names is not None)


def verify(name: str, config: Mapping[str, Any] | None = None, *, further: bool = False) -> Family:
    """Try one family with a tiny model; `config` are values that its configuration needs.

    `further`: also beyond its windows (see probe.py), which takes some seconds more.
    """
    from joymigrate.chips import hide_driverless

    hide_driverless()
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(made)
        model = tiny(name, config or {}, folder)
        found = compare(name, folder, model)
    wanted = further and found.status == "pass"
    return beyond(found, name, config or {}) if wanted else found


def beyond(found: Family, name: str, config: Mapping[str, Any]) -> Family:
    """The family after a trial beyond the windows that its configuration can have."""
    from joymigrate.run.serve.engine.probe import WINDOWS, probe

    entry = decoder_families().get(name, {})
    if "as" in entry:  # tried with the family that it is computed as
        return found
    from transformers import AutoConfig

    raw = AutoConfig.for_model(name, **fitting(name, config)).to_dict()
    # As the family comes, and with the windows that it comes without.
    optional: dict[str, Any] = {key: 1 for key in WINDOWS if key in raw and not raw[key]}
    if "use_sliding_window" in raw:
        optional |= {"use_sliding_window": True, "max_window_layers": 1, "layer_types": None}
    for values in (raw, {**raw, **optional}) if optional else (raw,):
        tried = probe(values)
        if not tried.passed:
            break
    else:
        return found
    status = "refused" if tried.passed is False else found.status
    return Family(name, status, found.path, f"beyond its limits: {tried.reason}", found.tokens)


def compare(name: str, folder: Path, model: Any) -> Family:
    """Continue the same prompts with the engine and with transformers."""
    from joymigrate.run.serve.engine.load import load_engine
    from joymigrate.run.serve.engine.types import EngineOptions, Request, Sampling

    try:
        engine = load_engine(folder, EngineOptions(dtype="float32", **TIGHT)).engine  # type: ignore[arg-type]
    except JoyError as error:
        return Family(name, "refused", reason=error.what)
    source = random.Random(0)
    width = engine.model.vocabulary
    asked = [[source.randrange(width) for _ in range(length)] for length in LENGTHS]
    sampling = Sampling(max_tokens=COUNT, temperature=0, ignore_eos=True)
    want = [continued(model, ids) for ids in asked]
    for i, ids in enumerate(asked):
        engine.add(Request(str(i), tuple(ids), sampling))
    got: list[list[int]] = [[] for _ in asked]
    while not engine.idle:
        for output in engine.step():
            got[int(output.request_id)] += output.new_ids
    seen = len({token for ids in want for token in ids})
    for ids, right, wrong in zip(asked, want, got, strict=True):
        if right != wrong:
            reason = f"after {len(ids)} tokens: {wrong} instead of {right}"
            return Family(name, "fail", engine.model.path, reason, seen)
    return Family(name, "pass", engine.model.path, "", seen)


def continued(model: Any, ids: list[int]) -> list[int]:
    """What transformers' `generate` appends."""
    import torch

    with torch.inference_mode():
        made = model.generate(torch.tensor([ids]), max_new_tokens=COUNT, do_sample=False)
    return made[0, len(ids) :].tolist()  # type: ignore[no-any-return]


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


def main() -> None:
    """Try every listed family again, and print one line each."""
    for family in verify_families():
        print(f"{family.name}: {family.status} {family.path} {family.reason}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
