"""One tiny model of a family: built on the meta device, and stepped once with made-up inputs.

Shapes: B samples, L tokens.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from joymigrate.run.train.family_kinds import KINDS, RECOMMENDATION, TEXT_TO_IMAGE
from joymigrate.run.train.shrink import tiny, tiny_arguments

if TYPE_CHECKING:
    import torch

    from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs

B, L = 2, 12
SIDE = 8  # of latent images
GRIDDED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")  # take patches with a grid


class UnknownInputs(Exception):
    """Nothing here knows what a model's forward wants."""


def build(kind: str, family: str) -> Any:
    """The tiny model on the current default device."""
    import transformers

    if kind == RECOMMENDATION:
        from joymigrate.run.train import recommendation

        kept = recommendation.find(family)
        return kept.MODEL(rows_shape(), **kept.SIZES)
    if kind == TEXT_TO_IMAGE:
        import diffusers

        made = getattr(diffusers, family)
        return made(**tiny_arguments(made))
    auto = getattr(transformers, KINDS[kind][1])
    return auto.from_config(tiny(family))


def meta(kind: str, family: str) -> int:
    """Parameters of the tiny model, built without memory."""
    import torch

    with torch.device("meta"):
        model = build(kind, family)
    return sum(p.numel() for p in model.parameters())


def step(kind: str, family: str) -> str:
    """One step on the CPU; returns what the model was fed with."""
    import torch

    torch.manual_seed(0)
    model = build(kind, family).float().train()
    fed, inputs = inputs_of(kind, family, model)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    loss: Any = loss_of(model, inputs)
    if not bool(torch.isfinite(loss)):
        raise ValueError(f"the loss is {float(loss)}")
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not any(bool(g.abs().sum() > 0) for g in gradients):
        raise ValueError("no parameter got a gradient")
    optimiser.step()
    return fed


def packs(family: str) -> bool:
    """Whether documents that share a row are learned as if each stood alone."""
    import torch

    from joymigrate.run.train.probes import find_leak

    torch.manual_seed(0)
    model = build("llm", family).float()
    text = model.config.get_text_config()
    return find_leak(model, min(text.vocab_size, 400)) is None


def loss_of(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The model's own loss where it has one, else that of what it predicts against zeros."""
    import torch

    output = model(**inputs)
    if isinstance(output, torch.Tensor):
        mean: torch.Tensor = output.float().square().mean()
        return mean
    loss = getattr(output, "loss", None)
    if loss is not None:
        found: torch.Tensor = loss
        return found
    made = getattr(output, "logits", None)
    if made is None:
        made = output.sample if hasattr(output, "sample") else output[0]
    zero: torch.Tensor = made.float().square().mean()
    return zero


def inputs_of(kind: str, family: str, model: Any) -> tuple[str, dict[str, Any]]:
    """What to feed, in words and as arguments."""
    import torch

    if kind == RECOMMENDATION:
        return "rows of features", {"x": looked_up()}
    if kind == TEXT_TO_IMAGE:
        return "latents", latents(model)
    if kind == "image":
        config = model.config
        side = getattr(config, "image_size", None) or 32
        side = side if isinstance(side, int) else side[0]
        channels = getattr(config, "num_channels", 3)
        pixels = torch.randn(B, channels, side, side)
        return "images", {"pixel_values": pixels, "labels": torch.zeros(B, dtype=torch.long)}
    text = model.config.get_text_config() if hasattr(model.config, "get_text_config") else None
    vocabulary: int = (
        getattr(text, "vocab_size", None) or getattr(model.config, "vocab_size", None) or 512
    )
    ids_BL = torch.randint(4, max(8, min(vocabulary, 400)), (B, L))
    if kind == "multimodal" and family in GRIDDED:
        return "text and images", with_image(model, ids_BL)
    inputs: dict[str, Any] = {"input_ids": ids_BL, "labels": ids_BL.clone()}
    if hasattr(model.config, "use_cache"):
        inputs["use_cache"] = False
    known = inspect.signature(model.forward).parameters
    if "input_ids" not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        raise UnknownInputs(f"its forward takes {', '.join(list(known)[:4])} …")
    return "text", inputs


def rows_shape() -> InputShape:
    """Four fields, two numbers and a sequence."""
    from joymigrate.run.train.recommendation.inputs import InputShape

    return InputShape(fields=4, numbers=2, dim=8, events=(L,), targets=1, codes=(5, 3))


def looked_up() -> RowInputs:
    """Rows of such features, as tables give them."""
    import torch

    from joymigrate.run.train.recommendation.inputs import RowInputs

    events_BLD, target_BD = torch.randn(B, L, 8), torch.randn(B, 8)
    mask_BL = torch.arange(L) < torch.tensor([[L], [L // 2]])
    fields_BFD, numbers_BG = torch.randn(B, 4, 8), torch.randn(B, 2)
    events = ((events_BLD * mask_BL[..., None], mask_BL, target_BD),)
    codes = ((torch.randint(3, (B, L, 2)), torch.randint(3, (B, 2))),)
    return RowInputs(fields_BFD, numbers_BG, torch.randn(B), events, codes=codes)


def with_image(model: Any, ids_BL: torch.Tensor) -> dict[str, Any]:
    """One image of 4 x 4 patches per row: so many image tokens, patches and a grid."""
    import torch

    vision = model.config.vision_config
    merge = vision.spatial_merge_size
    count = (4 // merge) ** 2
    ids_BL[:, 1 : 1 + count] = model.config.image_token_id
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    labels_BL = ids_BL.clone()
    labels_BL[:, 1 : 1 + count] = -100
    return {
        "input_ids": ids_BL,
        "labels": labels_BL,
        "pixel_values": torch.randn(B * 16, values),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * B),
        "mm_token_type_ids": (ids_BL == model.config.image_token_id).int(),
    }


def latents(model: Any) -> dict[str, Any]:
    """Arguments of a denoiser's forward, by their names."""
    import torch

    config = model.config
    known = inspect.signature(model.forward).parameters
    width = next(
        (
            config[n]
            for n in ("joint_attention_dim", "cross_attention_dim", "caption_channels", "text_dim")
            if isinstance(config.get(n), int)
        ),
        32,
    )
    channels = config.get("in_channels") or 4
    packed = "img_ids" in known
    shape = (B, SIDE * SIDE, channels) if packed else (B, channels, SIDE, SIDE)
    offered: dict[str, Any] = {
        "sample": torch.randn(shape),
        "hidden_states": torch.randn(shape),
        "timestep": torch.full((B,), 10),
        "encoder_hidden_states": torch.randn(B, 6, width),
        "pooled_projections": torch.randn(B, config.get("pooled_projection_dim") or 32),
        "img_ids": torch.zeros(SIDE * SIDE, 3),
        "txt_ids": torch.zeros(6, 3),
        "class_labels": torch.zeros(B, dtype=torch.long),
        "guidance": torch.ones(B),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }
    optional = ("encoder_hidden_states", "pooled_projections", "img_ids", "txt_ids")
    made = {}
    for name, parameter in known.items():
        needed = parameter.default is inspect.Parameter.empty
        by_class = name == "class_labels" and bool(config.get("num_embeds_ada_norm"))
        if name in offered and (needed or name in optional or by_class):
            made[name] = offered[name]
        elif needed and parameter.kind is not parameter.VAR_KEYWORD:
            raise UnknownInputs(f"nothing here makes its input '{name}'")
    return made
