"""LoRA adapters: what each adds to a model's linear layers, chosen row by row of a step.

y = W·x + scale·B·A·x (Hu et al. 2021, arXiv:2106.09685), in the form that PEFT saves. A folder
is taken whole or refused: a setting or a tensor that would be left out is a wrong answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.run.serve.engine.linear import Linear

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
KEY = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.\w+)?\.weight")
# Settings of PEFT's LoraConfig that say how an adapter was trained, or that its tensors show.
QUIET = frozenset(
    (
        "task_type",
        "peft_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "r",
        "target_modules",
        "exclude_modules",
        "lora_alpha",
        "lora_dropout",
        "use_rslora",
        "layers_to_transform",
        "layers_pattern",
        "rank_pattern",
        "alpha_pattern",
        "eva_config",
        "megatron_core",
        "qalora_group_size",
        "ensure_weight_tying",
        "fan_in_fan_out",
        "runtime_config",
        "loftq_config",
        "init_lora_weights",
    )
)
# Starts that leave the model's own weights as they are; others (pissa, olora …) change them.
STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class AdapterPair:
    """One module's part of an adapter: `down` A [r, in], `up` scale·B [out, r]; float32."""

    down: Tensor
    up: Tensor


@dataclass(slots=True)
class Selection:
    """Which rows of the running step use which adapter; rows None: all of them."""

    groups: Sequence[tuple[int, Tensor | None]] = ()


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of a model. A request names one; sequences carry its number, from 1 up."""

    numbers: Mapping[str, int] = field(default_factory=dict)

    def number(self, name: str | None) -> int:
        """The number of an adapter, 0 for none; raises `JoyError` for an unknown one."""
        if name is None:
            return 0
        if name not in self.numbers:
            raise JoyError(f"there is no adapter '{name}' here", where="adapter")
        return self.numbers[name]

    def root(self, number: int) -> bytes:
        """What keeps an adapter's keys and values apart from others in the prefix cache."""
        return f"adapter {number}".encode() if number else b""


@dataclass(slots=True, eq=False)
class Adapted:
    """A linear layer, and what adapters add to it."""

    kind: ClassVar[str] = "adapted"
    base: Linear
    pairs: Mapping[int, AdapterPair]
    selection: Selection

    def __call__(self, x: Tensor) -> Tensor:
        return add(self.base(x), x, self.pairs, self.selection)


def add(y: Tensor, x: Tensor, pairs: Mapping[int, AdapterPair], selection: Selection) -> Tensor:
    """y with the additions of the rows' adapters; y is changed."""
    for number, rows in selection.groups:
        pair = pairs.get(number)
        if pair is None:
            continue
        if rows is None:
            y += (x @ pair.down.T) @ pair.up.T
        else:
            y.index_add_(0, rows, (x[rows] @ pair.down.T) @ pair.up.T)
    return y


def read(name: str, folder: Path) -> dict[str, AdapterPair]:
    """An adapter's parts by module; raises `JoyError` for one that is more than LoRA."""
    settings = read_settings(name, folder)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    if not path.is_file():
        raise JoyError(
            f"the adapter '{name}' has no {WEIGHTS}", where=str(folder),
            help="save it with PEFT's save_pretrained (safetensors)",
        )  # fmt: skip
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise JoyError(f"the adapter '{name}' cannot be read: {error}", where=str(path)) from None
    sides: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = KEY.fullmatch(key.removeprefix(PREFIX))
        if match is None or tensor.dim() != 2:
            raise JoyError(f"the adapter '{name}' holds '{key}', which is no part of a linear "
                           "layer's LoRA", where=str(path))  # fmt: skip
        sides.setdefault(match["module"], {})[match["side"]] = tensor.float()
    pairs = {}
    for module, found in sides.items():
        if len(found) != 2 or found["A"].shape[0] != found["B"].shape[1]:
            raise JoyError(f"the adapter '{name}' is broken: lora_A and lora_B of {module} do not "
                           "belong together", where=str(path))  # fmt: skip
        pairs[module] = AdapterPair(
            found["A"], found["B"] * scale(module, found["A"].shape[0], settings)
        )
    if not pairs:
        raise JoyError(f"the adapter '{name}' is empty", where=str(path))
    return pairs


def read_settings(name: str, folder: Path) -> dict[str, Any]:
    """adapter_config.json, checked."""
    path = folder / CONFIG
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JoyError(f"the adapter '{name}' cannot be read: {error}", where=str(path)) from None
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        raise JoyError(f"'{name}' is no LoRA adapter", where=str(path), help="peft_type: LORA")
    if settings.get("init_lora_weights", True) not in STARTS:
        raise JoyError(
            f"the adapter '{name}' changes the model's own weights "
            f"(init_lora_weights: {settings['init_lora_weights']})", where=str(path),
            help="convert it with PEFT: path_initial_model_for_weight_conversion",
        )  # fmt: skip
    for key, value in settings.items():
        if (
            key in QUIET
            or key == "init_lora_weights"
            or not value
            or (key, value) == ("bias", "none")
        ):
            continue
        raise JoyError(
            f"the adapter '{name}' uses {key}: {str(value)[:60]}, which is not served",
            where=str(path), help="merge it into the model, and serve that",
        )  # fmt: skip
    patterns = settings.get("alpha_pattern") or {}
    factors = list(patterns.values()) if isinstance(patterns, dict) else [None]
    for alpha in (settings.get("lora_alpha", 1), *factors):
        if type(alpha) not in (int, float):
            raise JoyError(
                f"the adapter '{name}' has an alpha of {str(alpha)[:60]!r}", where=str(path),
                help="lora_alpha is a number, alpha_pattern an object of numbers",
            )  # fmt: skip
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise JoyError(f"alpha_pattern has '{pattern}', which is no pattern: {error}",
                           where=str(path)) from None  # fmt: skip
    return settings


def scale(module: str, rank: int, settings: Mapping[str, Any]) -> float:
    """alpha / r, or alpha / √r (rank-stabilised), with the module's own alpha where it has one."""
    alpha = settings.get("lora_alpha", rank)
    for pattern, own in (settings.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = own
            break
    return float(alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)
