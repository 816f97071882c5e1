"""Text to image: a diffusion model learns to remove noise from images, given their captions.

`model.from_config` trains a UNet of diffusers on pixels with a small text encoder of its own;
`model.path` fine-tunes the UNet of a pipeline folder (unet, vae, text_encoder, tokenizer) whose
other parts stay frozen. The noise target is epsilon (Ho et al., 2020, arXiv 2006.11239).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.image_classification import pixels
from joymigrate.run.train.tasks.task import TOKENS

if TYPE_CHECKING:
    import torch

NOISE_LEVELS = 1000
LEVELS = (100, 300, 500)  # noise levels that evaluation looks at


class TextToImage(_inputs.Pictures):
    """Images with captions."""

    SCHEMA: ClassVar[str] = '{"image": "path beside the data", "caption": "…"}'
    OPTIONS: ClassVar[Mapping[str, Any]] = {"size": 64}
    FIELDS: ClassVar[Mapping[str, str]] = {"tokens": TOKENS, "image": "uint8"}

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample per image."""
        import numpy as np

        image = _inputs.picture(record.require("image"), self.size, self.context, record)
        text = record.text("caption", "text")
        tokens = _inputs.token_ids(record, self.tokenizer, text, min(77, self.context.max_length))
        return [{"tokens": tokens, "image": image.reshape(-1), "weight": np.ones(1)}]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Captions, and images [B, 3, size, size] from -1 to 1."""
        return {
            **_inputs.texts(samples, self.tokenizer),
            "pixel_values": pixels(samples, self.size),
        }

    def build(self, source: Any) -> Any:
        """A pipeline's parts as one module."""
        from joymigrate.run.train.tasks import _diffusion

        return _diffusion.build(source, len(self.tokenizer), self.size)

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Square error of the predicted noise per image [B], at a random level each."""
        import torch

        images = batch["pixel_values"]
        levels = torch.randint(0, NOISE_LEVELS, (len(images),), device=images.device)
        errors: torch.Tensor = model(images, batch["input_ids"], batch["attention_mask"], levels)
        return errors

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The errors' sum."""
        return output.sum()

    def predict(self, model: Any, batch: Batch) -> list[dict[str, Any]]:
        """Which caption of the batch removes the noise of each image best, and how well its own.

        The same noise is used for all captions, so that only the caption makes a difference.
        """
        import torch

        images, ids, mask = batch["pixel_values"], batch["input_ids"], batch["attention_mask"]
        kinds = list(dict.fromkeys(tuple(row.tolist()) for row in ids))
        own = [kinds.index(tuple(row.tolist())) for row in ids]
        errors_KB = torch.zeros(len(kinds), len(images))
        for number in range(len(kinds)):
            row = own.index(number)
            count = len(images)
            for level in LEVELS:
                torch.manual_seed(self.context.seed + level)
                levels = torch.full((count,), level, device=images.device)
                made = model(images, ids[row : row + 1].expand(count, -1),
                             mask[row : row + 1].expand(count, -1), levels)  # fmt: skip
                errors_KB[number] += made.cpu() / len(LEVELS)
        names = [self.tokenizer.decode(kind, skip_special_tokens=True) for kind in kinds]
        return [
            {
                "prediction": names[int(errors_KB[:, row].argmin())],
                "reference": names[mine],
                "score": -float(errors_KB[mine, row]),
                "captions": len(kinds),
            }
            for row, mine in enumerate(own)
        ]

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Error of the noise (1: nothing learned), and how often the own caption fits best.

        `chance` is what guessing among the captions of a batch would give.
        """
        if not rows:
            return {}
        hits = [row["prediction"] == row["reference"] for row in rows]
        return {
            "noise_mse": -sum(row["score"] for row in rows) / len(rows),
            "caption_accuracy": sum(hits) / len(hits),
            "chance": sum(1 / row["captions"] for row in rows) / len(rows),
        }


TASK = TextToImage
