"""Where a job's weights come from: a local folder, or a configuration with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError, did_you_mean

if TYPE_CHECKING:
    from joymigrate.run.train.job import TuningMethod

# Names by which configurations count attention heads; tensor parallel splits all of them.
HEADS = ("num_attention_heads", "num_key_value_heads")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Builds models on the CPU; what shards and moves them comes later.

    `tokens` is the tokenizer's size, for a configuration that names no vocabulary. `dtype` is the
    name of the weights' type.
    """

    path: Path | None
    settings: Mapping[str, Any]
    dtype: str = "float32"
    attention: str = "sdpa"
    seed: int = 0
    tokens: int | None = None
    special: Mapping[str, int | None] | None = None

    def config(self) -> Any:
        """The model's configuration."""
        from joymigrate.chips import hide_driverless

        hide_driverless()
        from transformers import AutoConfig

        if self.path is None:
            return self.from_settings()
        if not (self.path / "config.json").is_file():
            raise JoyError(
                "no model there: config.json is missing",
                where=str(self.path),
                help="model.path names a local folder; model.from_config makes random weights",
            )
        try:
            return AutoConfig.from_pretrained(self.path, local_files_only=True)
        except (ValueError, KeyError, OSError) as error:
            raise JoyError(
                f"cannot read the model's configuration: {str(error).splitlines()[0]}",
                where=str(self.path),
            ) from None

    def from_settings(self) -> Any:
        """A configuration from `from_config`; a key that the model type lacks is an error."""
        from huggingface_hub.errors import StrictDataclassError
        from transformers import CONFIG_MAPPING

        settings = dict(self.settings)
        kind = settings.pop("model_type", None)
        if kind not in CONFIG_MAPPING:
            raise JoyError(
                f"unknown model_type '{kind}'.{did_you_mean(str(kind), CONFIG_MAPPING.keys())}",
                where="model.from_config",
                help="a model type of transformers: qwen2, llama, …",
            )
        made = CONFIG_MAPPING[kind]()
        known = {*made.to_dict(), *made.attribute_map, "num_labels", "id2label", "label2id"}
        for key in settings:
            if key not in known:
                raise JoyError(
                    f"'{kind}' has no setting '{key}'.{did_you_mean(str(key), known)}",
                    where="model.from_config",
                )
        if self.tokens is not None and "vocab_size" in known:
            settings.setdefault("vocab_size", self.tokens)
            for name, value in (self.special or {}).items():
                settings.setdefault(name, value)
        for key, value in settings.items():  # a whole number is a number
            if isinstance(getattr(made, key, None), float) and type(value) is int:
                settings[key] = float(value)
        try:
            return CONFIG_MAPPING[kind](**settings)
        except (ValueError, TypeError, StrictDataclassError) as error:
            raise JoyError(
                f"these sizes do not go together: {' '.join(str(error).split())}",
                where="model.from_config",
            ) from None

    def transformers(self, auto: str, **more: Any) -> Any:
        """A model of transformers, built by one of its Auto classes, in training mode."""
        import torch

        config = self.config()
        for key, value in more.items():
            setattr(config, key, value)
        self.check_vocabulary(config)
        import transformers

        kind = getattr(transformers, auto)
        how = {"dtype": getattr(torch, self.dtype), "attn_implementation": self.attention}
        torch.manual_seed(self.seed)
        try:
            if self.path is None:
                model = kind.from_config(config, **how)
            else:
                model = kind.from_pretrained(self.path, config=config, local_files_only=True, **how)
        except (ValueError, OSError, ImportError) as error:
            raise JoyError(
                f"cannot build the model: {' '.join(str(error).split())[:300]}",
                where=str(self.path or "model.from_config"),
            ) from None
        model.train()
        return model

    def check_vocabulary(self, config: Any) -> None:
        """The tokenizer must not know more tokens than the model."""
        size = getattr(text_part(config), "vocab_size", None)
        if self.tokens is not None and size is not None and size < self.tokens:
            raise JoyError(
                f"the tokenizer has {self.tokens} tokens, the model only {size}",
                where=str(self.path or "model.from_config.vocab_size"),
                help="use the model's own tokenizer, or a larger vocab_size",
            )


def text_part(config: Any) -> Any:
    """The part of a model's configuration that is about text."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def check_heads(config: Any, tp: int) -> None:
    """Attention heads divide over the tensor-parallel processes."""
    text = text_part(config)
    for name in HEADS:
        heads = getattr(text, name, None)
        if heads is not None and heads % tp:
            raise JoyError(
                f"{name} {heads} does not divide over tp {tp}",
                where="layout.tp",
                help=f"tp must divide {heads}",
            )


def adapt(model: Any, method: TuningMethod) -> Any:
    """The model with LoRA matrices; everything else is frozen."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from peft import LoraConfig, get_peft_model

    scale: Any = method.alpha  # peft's annotation says int; it divides
    wanted: Any = list(method.targets) or "all-linear"
    settings = LoraConfig(
        r=method.rank,
        lora_alpha=scale,
        lora_dropout=method.dropout,
        target_modules=wanted,
        use_dora=method.dora,
        use_rslora=method.rslora,
    )
    try:
        return get_peft_model(model, settings)
    except ValueError as error:
        raise JoyError(
            f"LoRA found no place: {' '.join(str(error).split())[:200]}",
            where="method.targets",
            help="name linear layers of the model, such as q_proj, or leave targets out",
        ) from None


def unwrap(model: Any) -> Any:
    """The model inside an adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
