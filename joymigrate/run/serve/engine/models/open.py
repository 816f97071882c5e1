"""A model folder as a model: our decoder where it knows the family, else through transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.models.library import HELP, OURS, TransformersModel, register
from joymigrate.run.serve.engine.models.model import CausalModel
from joymigrate.run.serve.engine.models.rotary import CHANGING
from joymigrate.run.serve.engine.models.spec import describe
from joymigrate.run.serve.engine.models.states import keeps_states
from joymigrate.run.serve.engine.models.vision import VISION_PARTS, Seeing
from joymigrate.run.serve.engine.pooling import pooling_of
from joymigrate.run.serve.engine.share import ProcessShare
from joymigrate.run.serve.engine.types import EngineOptions
from joymigrate.run.serve.engine.weights import Weights

VISION = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")


def load_model(
    folder: Path,
    raw: dict[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    options: EngineOptions,
    share: ProcessShare | None = None,
) -> CausalModel:
    """The model: the decoder where the family is one of its own, else through transformers."""
    from joymigrate.run.serve.engine.models.decoder import DecoderModel
    from joymigrate.run.serve.engine.quantised import quantised_reader
    from joymigrate.run.train.formats.open import open_quantised

    spec, reason = describe(raw) if not options.generic else (None, "asked for transformers")
    if spec is not None:
        weights = Weights(folder)
        return DecoderModel(
            spec,
            weights,
            dtype,
            device,
            prepack=options.prepack and not options.compile,
            reader=quantised_reader(folder, weights),
            share=share,
            compile=options.compile,
        )
    if options.compile:
        raise JoyError(f"--compile needs the decoder, but {reason}", help="leave --compile out")
    if share is not None and share.world > 1:
        raise JoyError(f"tensor parallel needs the decoder, but {reason}")
    if open_quantised(folder) is not None:
        raise JoyError(
            f"quantised weights are served by the decoder alone, but {reason}", where=str(folder)
        )
    if pooling_of(folder) is not None:
        raise JoyError(
            f"embeddings and scores come from the decoder alone, but {reason}", where=str(folder),
            help="serve --engine vllm",
        )  # fmt: skip
    return load_library(
        folder, raw, dtype, device, reason, trust_remote_code=options.trust_remote_code
    )


def load_library(
    folder: Path,
    raw: dict[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    reason: str,
    *,
    trust_remote_code: bool = False,
) -> TransformersModel:
    """The model of a folder. Raises `JoyError` when it cannot run packed, with the reason."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers import AutoConfig, AutoModelForCausalLM

    register()
    family = str(raw["model_type"])
    vision = family in VISION
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise JoyError(
            f"{family} is no model of this transformers: {first_line(error)}",
            where=str(folder),
            help="--trust-remote-code runs the folder's own code, where it brings some",
        ) from error
    refuse_early(config, family)
    maker: Any = AutoModelForCausalLM
    if vision:
        from transformers import AutoModelForImageTextToText

        maker = AutoModelForImageTextToText
    try:
        model = maker.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=VISION_PARTS if vision else OURS,
            trust_remote_code=trust_remote_code,
        )
    except Exception as error:
        raise JoyError(
            f"{family} does not load: {first_line(error)}", where=str(folder), help=HELP
        ) from error
    model = model.to(device).eval()
    if vision:
        return try_model(Seeing(model, family, dtype, device, folder), reason)
    return try_model(TransformersModel(model, family, dtype, device), reason)


def try_model(made: TransformersModel, reason: str) -> TransformersModel:
    """The model, after its trial."""
    made.look_alike()
    made.notes = (f"through transformers: {reason}",)
    return made


def refuse_early(config: Any, family: str) -> None:
    """Raise `JoyError` for models that can be told without loading their weights."""
    from transformers import AutoModelForCausalLM

    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    kinds = [parameters, *(p for p in parameters.values() if isinstance(p, dict))]
    for kind in kinds:
        if kind.get("rope_type") in CHANGING:
            raise JoyError(
                f"{family}: its rotary embedding ({kind['rope_type']}) changes with the length of "
                "a text, which texts computed together do not share",
                help=HELP,
            )
    if family in VISION or type(config) not in AutoModelForCausalLM._model_mapping:
        return
    model: Any = AutoModelForCausalLM._model_mapping[type(config)]
    if keeps_states(model):
        return
    if getattr(model, "_is_stateful", False):
        raise JoyError(
            f"{family} keeps a state that is no list of keys and values, so it cannot be paged",
            help=HELP,
        )
    if not getattr(model, "_supports_attention_backend", True):
        raise JoyError(
            f"{family} computes its attention by itself, not through transformers' interface",
            help=HELP,
        )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
