"""Which families are served: each tried with a tiny random model against transformers.

`verified.yaml` keeps what was found, for `serve models`; `verify_families` finds it again. A
family is verified when every text of a mixed batch, with prompts in chunks and sequences that
start over, continues greedily as `transformers.generate` continues it alone, in float32. Families
whose code is not in transformers are tried with the weights of the family that they are computed
as, under their own names.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.serve.engine.models.spec import families as decoder_families
from joymigrate.run.serve.engine.probe import WINDOWS, continue_text, first_difference, probe, texts
from joymigrate.run.serve.engine.tiny_models import document, fitting, tiny

LENGTHS = (30, 7, 1, 17)
COUNT = 12
TIGHT = {"max_batch_tokens": 24, "kv_blocks": 24, "block_size": 4, "max_model_len": 60}


@dataclass(frozen=True, slots=True)
class EngineFamily:
    """A family and how it fared: `pass`, `fail`, or `refused` with the reason."""

    name: str
    status: str
    path: str = ""  # decoder or transformers
    reason: str = ""
    tokens: int = 0  # different tokens in what was compared: few would prove little


def list_verified() -> list[EngineFamily]:
    """The families that were verified, and those that are refused, from the list."""
    listed = document()
    found = [
        EngineFamily(name, "pass", (entry or {}).get("path", "transformers"))
        for name, entry in listed["families"].items()
    ]
    found += [EngineFamily(name, "pass", "transformers, with images") for name in listed["images"]]
    found += [
        EngineFamily(name, "refused", reason=reason) for name, reason in listed["refused"].items()
    ]
    return sorted(found, key=lambda family: family.name)


def versions() -> str:
    """With which transformers the list was made."""
    return str(document()["transformers"])


def verify_families(names: Iterable[str] | None = None) -> Iterator[EngineFamily]:
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


def verify(
    name: str, config: Mapping[str, Any] | None = None, *, further: bool = False
) -> EngineFamily:
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


def beyond(found: EngineFamily, name: str, config: Mapping[str, Any]) -> EngineFamily:
    """The family after a trial beyond the windows that its configuration can have."""
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
    return EngineFamily(
        name, status, found.path, f"beyond its limits: {tried.reason}", found.tokens
    )


def compare(name: str, folder: Path, model: Any) -> EngineFamily:
    """Continue the same prompts with the engine and with transformers."""
    from joymigrate.run.serve.engine.load import load_engine
    from joymigrate.run.serve.engine.types import EngineOptions

    try:
        engine = load_engine(folder, EngineOptions(dtype="float32", **TIGHT)).engine  # type: ignore[arg-type]
    except JoyError as error:
        return EngineFamily(name, "refused", reason=error.what)
    source = random.Random(0)
    width = engine.model.vocabulary
    asked = [[source.randrange(width) for _ in range(length)] for length in LENGTHS]
    want = [continue_text(model, ids, COUNT) for ids in asked]
    got = texts(engine, asked, COUNT)
    seen = len({token for ids in want for token in ids})
    wrong = first_difference(asked, want, got)
    return EngineFamily(name, "fail" if wrong else "pass", engine.model.path, wrong, seen)


def main() -> None:
    """Try every listed family again, also beyond its windows, and print one line each."""
    for family in verify_families(document()["families"]):
        print(f"{family.name}: {family.status} {family.path} {family.reason}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
