"""A text-to-image model for training: UNet, text encoder and, for a pipeline folder, its VAE.

Shapes: B images, L tokens, D text width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from joymigrate.errors import JoyError

LEVELS = 1000  # noise levels
SIZES: dict[str, Any] = {
    "model_type": "unet-2d-condition",
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "text_width": 32,
    "attention_head_dim": 8,
    "norm_num_groups": 8,
}


class Captions(nn.Module):
    """A small text encoder: embeddings, positions and one transformer layer."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(tokens, width)
        self.places = nn.Embedding(77, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """States [B, L, D]."""
        places = self.places(torch.arange(ids_BL.shape[1], device=ids_BL.device))
        made: torch.Tensor = self.layer(
            self.words(ids_BL) + places, src_key_padding_mask=mask_BL == 0
        )
        return made


class Denoiser(nn.Module):
    """Predicts the noise of images at some level, given captions."""

    def __init__(self, unet: Any, captions: Any, vae: Any, scheduler: Any, sizes: Any) -> None:
        super().__init__()
        self.unet, self.captions, self.vae = unet, captions, vae
        self.scheduler, self.sizes = scheduler, sizes

    def forward(
        self,
        images: torch.Tensor,
        ids_BL: torch.Tensor,
        mask_BL: torch.Tensor,
        levels_B: torch.Tensor,
    ) -> torch.Tensor:
        """Mean square error of the predicted noise per image [B]."""
        images = images.to(next(self.unet.parameters()).dtype)
        if self.vae is not None:
            with torch.no_grad():
                posterior = self.vae.encode(images).latent_dist
                images = posterior.mean * self.vae.config.scaling_factor
        noise = torch.randn_like(images)
        noisy = self.scheduler.add_noise(images, noise, levels_B)
        states_BLD = self.read(ids_BL, mask_BL)
        made = self.unet(noisy, levels_B, states_BLD, encoder_attention_mask=mask_BL.bool()).sample
        errors_B: torch.Tensor = (made.float() - noise.float()).square().flatten(1).mean(1)
        return errors_B

    def read(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """The captions' states."""
        if isinstance(self.captions, Captions):
            made: torch.Tensor = self.captions(ids_BL, mask_BL)
            return made
        with torch.no_grad():
            found: torch.Tensor = self.captions(ids_BL, attention_mask=mask_BL).last_hidden_state
        return found

    def save_pretrained(self, folder: Path) -> None:
        """As a pipeline's folders; `captions` instead of `text_encoder` where it is our own."""
        from safetensors.torch import save_model

        folder.mkdir(parents=True, exist_ok=True)
        self.unet.save_pretrained(folder / "unet")
        self.scheduler.save_pretrained(folder / "scheduler")
        if self.vae is not None:
            self.vae.save_pretrained(folder / "vae")
        if isinstance(self.captions, Captions):
            (folder / "captions").mkdir()
            save_model(self.captions, str(folder / "captions" / "model.safetensors"))
            text = json.dumps(self.sizes, indent=1) + "\n"
            (folder / "captions" / "config.json").write_text(text)
        else:
            self.captions.save_pretrained(folder / "text_encoder")


def build(source: Any, tokens: int, size: int) -> Denoiser:
    """The model of a job: from sizes, or from a folder."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    torch.manual_seed(source.seed)
    made = from_folder(source.path) if source.path is not None else fresh(source, tokens, size)
    return made.to(getattr(torch, source.dtype)).train()


def fresh(source: Any, tokens: int, size: int) -> Denoiser:
    """Random weights."""
    from diffusers import DDPMScheduler, UNet2DConditionModel

    sizes: Mapping[str, Any] = {**SIZES, **source.settings, "tokens": tokens}
    if sizes["model_type"] != SIZES["model_type"]:
        raise JoyError(
            f"this task trains model_type {SIZES['model_type']}", where="model.from_config"
        )
    known = {k: v for k, v in sizes.items() if k not in ("model_type", "text_width", "tokens")}
    blocks = len(known["block_out_channels"])
    kinds = {
        "down_block_types": ("CrossAttnDownBlock2D",) * (blocks - 1) + ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (blocks - 1),
    }
    make: Any = UNet2DConditionModel
    shape = {"sample_size": size, "in_channels": 3, "out_channels": 3}
    try:
        unet = make(**{**shape, **kinds, **known, "cross_attention_dim": sizes["text_width"]})
    except (TypeError, ValueError) as error:
        raise JoyError(
            f"these sizes do not go together: {' '.join(str(error).split())}",
            where="model.from_config",
        ) from None
    captions = Captions(tokens, sizes["text_width"])
    noise: Any = DDPMScheduler
    return Denoiser(unet, captions, None, noise(LEVELS), dict(sizes))


def from_folder(folder: Path) -> Denoiser:
    """A pipeline's parts; only the UNet (and a caption encoder of our own) is trained."""
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel

    if not (folder / "unet").is_dir():
        raise JoyError("no pipeline there: unet/ is missing", where=str(folder))
    kind: Any = UNet2DConditionModel
    unet = kind.from_pretrained(folder / "unet", local_files_only=True)
    vae: Any = None
    if (folder / "vae").is_dir():
        coder: Any = AutoencoderKL
        vae = coder.from_pretrained(folder / "vae", local_files_only=True).requires_grad_(False)
    scheduler: Any = DDPMScheduler
    noise = scheduler.from_pretrained(folder / "scheduler", local_files_only=True)
    captions, sizes = read_captions(folder)
    return Denoiser(unet, captions, vae, noise, sizes)


def read_captions(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The text encoder of a pipeline folder, frozen; or our own."""
    if (folder / "captions").is_dir():
        from safetensors.torch import load_model

        sizes = json.loads((folder / "captions" / "config.json").read_text())
        captions = Captions(sizes["tokens"], sizes["text_width"])
        load_model(captions, str(folder / "captions" / "model.safetensors"))
        return captions, sizes
    from transformers import CLIPTextModel

    reader: Any = CLIPTextModel
    found = reader.from_pretrained(folder / "text_encoder", local_files_only=True)
    return found.requires_grad_(False), {}
