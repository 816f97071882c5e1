"""Image classification: one class per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.classification import Classification

if TYPE_CHECKING:
    import torch


class ImageClassification(_inputs.Pictures, Classification):
    """Images of one size, scaled to -1 … 1."""

    MODEL: ClassVar[str] = "AutoModelForImageClassification"
    TOKENIZER: ClassVar[bool] = False
    SCHEMA: ClassVar[str] = '{"image": "path beside the data, or data:image/…", "label": "name"}'
    OPTIONS: ClassVar[Mapping[str, Any]] = {"labels": None, "size": 224}
    FIELDS: ClassVar[Mapping[str, str]] = {"image": "uint8", "label": "int32"}

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample."""
        import numpy as np

        image = _inputs.picture(record.require("image"), self.size, self.context, record)
        return [{"image": image.reshape(-1), "label": self.label(record), "weight": np.ones(1)}]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Images [B, 3, size, size] and labels [B]."""
        return {
            "pixel_values": pixels(samples, self.size),
            "labels": _inputs.numbers(samples, "label"),
        }

    def build(self, source: Any) -> Any:
        """A model for images of this size."""
        wanted = source.config().to_dict().get("image_size")
        if source.path is not None and wanted not in (None, self.size):
            raise JoyError(
                f"the model takes images of {wanted} pixels, the task makes {self.size}",
                where="task.size",
                help=f"set task: {{size: {wanted}}}",
            )
        more = _inputs.head_settings(self.names)
        if wanted is not None:
            more["image_size"] = self.size
        return source.transformers(self.MODEL, **more)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The images alone."""
        return {"pixel_values": batch["pixel_values"]}


def pixels(samples: Sequence[Sample], size: int) -> torch.Tensor:
    """Images as [B, 3, size, size] from -1 to 1."""
    import numpy as np
    import torch

    stacked = np.stack([sample["image"].reshape(size, size, 3) for sample in samples])
    made = torch.from_numpy(stacked.astype(np.float32)).permute(0, 3, 1, 2)
    return made.div(127.5).sub(1.0).contiguous()


TASK = ImageClassification
