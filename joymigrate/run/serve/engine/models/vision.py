"""Models that read images: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, over the same scheduler and cache.

An image's placeholder in the prompt is widened to one token for each of its merged patches; their
embeddings come from the model's vision part, once for a request. Positions have three axes (time,
height, width): those of a text are the same on all, and go on after the largest of an image.
Qwen3-VL adds features of the image behind its first layers, too (DeepStack, arXiv 2406.04334).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.batch import Batch
from joymigrate.run.serve.engine.cache import Cache
from joymigrate.run.serve.engine.models.library import (
    OURS,
    AttentionStep,
    TransformersModel,
    during,
)
from joymigrate.run.serve.engine.scheduler import Chunk

VISION_PARTS = {"": OURS, "text_config": OURS, "vision_config": "sdpa"}
COMPARED = {"": "eager", "text_config": "eager", "vision_config": "sdpa"}


@dataclass(frozen=True, slots=True)
class PromptImages:
    """The images of one prompt of P tokens. `row_of[p]` is the row of `values` that replaces the
    embedding of token p, -1 for text; `positions` [3, P]; later tokens are at p + `shift`. `deep`
    are rows as those of `values`, to be added behind each of the first layers."""

    values: Tensor
    row_of: Tensor
    positions: Tensor
    shift: int
    deep: tuple[Tensor, ...] = ()

    def axes(self, start: int, end: int) -> Tensor:
        """Positions [3, end - start] of tokens, of the prompt or after it."""
        prompt = self.positions.shape[1]
        inside = self.positions[:, start : min(end, prompt)]
        after = torch.arange(max(start, prompt), max(end, prompt), device=inside.device)
        return torch.cat((inside, (after + self.shift).expand(3, -1)), 1)


class Seeing(TransformersModel):
    """A `Model` (see model.py) that also takes images."""

    ours = VISION_PARTS
    plain = COMPARED

    def __init__(
        self, model: Any, family: str, dtype: torch.dtype, device: torch.device, folder: Path
    ) -> None:
        self.images = image_processor(folder, model.config)
        super().__init__(model, family, dtype, device)

    def call(
        self, ids: Tensor, positions: Tensor, rows: Tensor, batch: Batch | None = None
    ) -> Tensor:
        """Scores of the tokens after `rows`, float32; `positions` [T] or [3, T]."""
        embeds = self.model.get_input_embeddings()(ids)
        if batch is not None and batch.embeds is not None:
            places, values = batch.embeds
            embeds = embeds.index_copy(0, places, values.to(embeds.dtype))
        axes = positions.expand(3, -1) if positions.dim() == 1 else positions
        deep: dict[str, Any] = {}
        if batch is not None and batch.deep and batch.embeds is not None:
            mask = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
            mask[batch.embeds[0]] = True
            deep = {"visual_pos_masks": mask[None], "deepstack_visual_embeds": batch.deep}
        states = self.model.model.language_model(
            inputs_embeds=embeds[None], position_ids=axes[:, None], use_cache=False, **deep
        ).last_hidden_state[0]
        return self.model.lm_head(states[rows]).float()  # type: ignore[no-any-return]

    def hidden(self, batch: Batch, cache: Cache) -> Tensor:
        """The scores of `batch.rows`."""
        self.selection.groups = batch.adapters
        with during(AttentionStep(batch, cache)):
            return self.call(batch.ids, batch.positions, batch.rows, batch)

    @torch.inference_mode()
    def look(
        self, prompt: list[int], images: Sequence[Any]
    ) -> tuple[list[int], PromptImages, bytes]:
        """The widened prompt, what was seen, and bytes that tell these images from others.

        Raises `JoyError` when placeholders and images differ in number.
        """
        placeholder = int(self.config.image_token_id)
        if prompt.count(placeholder) != len(images):
            raise JoyError(
                f"the prompt has {prompt.count(placeholder)} image placeholders for "
                f"{len(images)} images",
                where="images",
            )
        try:
            read = self.images(images=list(images), return_tensors="pt")
        except (ValueError, TypeError) as error:
            raise JoyError(f"an image cannot be used: {error}", where="images") from None
        grid = read["image_grid_thw"]
        merged = int(self.config.vision_config.spatial_merge_size) ** 2
        counts = iter((grid.prod(-1) // merged).tolist())
        widened: list[int] = []
        for token in prompt:
            widened += [token] * (int(next(counts)) if token == placeholder else 1)
        pixels = read["pixel_values"]
        features = self.model.model.get_image_features(
            pixels.to(self.device), grid.to(self.device), return_dict=True
        )
        values = torch.cat(list(features.pooler_output))
        layers = getattr(features, "deepstack_features", None) or ()
        deep = tuple(torch.cat(list(layer)) for layer in layers)
        ids = torch.tensor(widened)
        image = ids == placeholder
        row_of = torch.where(image, image.long().cumsum(0) - 1, -1)
        positions, shift = self.model.model.get_rope_index(
            ids[None], mm_token_type_ids=image.int()[None], image_grid_thw=grid
        )
        axes = positions[:, 0].to(self.device)
        seen = PromptImages(values, row_of, axes, int(shift.flatten()[0]), deep)
        return widened, seen, pixels.numpy().tobytes() + grid.numpy().tobytes()

    def place(
        self, batch: Batch, chunks: Sequence[Chunk], visions: Sequence[PromptImages | None]
    ) -> None:
        """Give a batch its positions on three axes, and the embeddings of its images' tokens."""
        axes, places, values = [], [], []
        deep: list[tuple[Tensor, ...]] = []
        first = 0
        for chunk, seen in zip(chunks, visions, strict=True):
            end = chunk.start + chunk.count
            if seen is None:
                axes.append(torch.arange(chunk.start, end, device=self.device).expand(3, -1))
            else:
                axes.append(seen.axes(chunk.start, end))
                rows = seen.row_of[chunk.start : end]
                inside = (rows >= 0).nonzero()[:, 0]
                if inside.numel():
                    places.append(inside.to(self.device) + first)
                    chosen = rows[inside].to(self.device)
                    values.append(seen.values[chosen])
                    deep.append(tuple(layer[chosen] for layer in seen.deep))
            first += chunk.count
        batch.positions = torch.cat(axes, 1)
        if places:
            batch.embeds = (torch.cat(places), torch.cat(values))
            batch.deep = [torch.cat(layer) for layer in zip(*deep, strict=True)]


def image_processor(folder: Path, config: Any) -> Any:
    """The processor of images that works on PIL images; the folder's settings, else the model's."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    if any((folder / f"{name}_config.json").is_file() for name in ("preprocessor", "processor")):
        return Qwen2VLImageProcessorPil.from_pretrained(folder)
    vision = config.vision_config
    return Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size,
        temporal_patch_size=vision.temporal_patch_size,
        merge_size=vision.spatial_merge_size,
    )
