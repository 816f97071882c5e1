"""Click-through rate: the probability of a click from categorical and numeric features.

The model is a DeepFM of ours (Guo et al., 2017, arXiv 1703.04247): embeddings of hashed
categories, their pairwise products, and an MLP over both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.task import Task, TaskContext

if TYPE_CHECKING:
    import torch

SIZES: dict[str, Any] = {"model_type": "deepfm", "embedding_dim": 16, "hidden": [64, 32]}


class Ctr(Task):
    """Texts are categories (hashed into `buckets`), numbers are numbers, as the first record has.

    `categorical` and `numeric` name the features where the first record does not tell.
    """

    TOKENIZER: ClassVar[bool] = False
    FIELDS: ClassVar[Mapping[str, str]] = {
        **{"categories": "int32", "numbers": "float32", "label": "int8"}
    }
    SCHEMA: ClassVar[str] = '{"label": 0 or 1, feature: text or number, …}'
    OPTIONS: ClassVar[Mapping[str, Any]] = {
        "categorical": None,
        "numeric": None,
        "buckets": 100_000,
        "label": "label",
    }

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        if self.options["categorical"] is None and self.options["numeric"] is None:
            self.options |= first_features(context, self.options["label"])
        self.categorical = list(self.options["categorical"] or ())
        self.numeric = list(self.options["numeric"] or ())
        self.buckets = int(self.options["buckets"])

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample; a missing category is one of its own, a missing number 0."""
        import zlib

        import numpy as np

        value = record.value
        click = record.get(self.options["label"])
        record.used.update([*self.categorical, *self.numeric])
        if click not in (0, 1) and (click is not None or self.context.references):
            raise JoyError(
                f"'{self.options['label']}' is 0 or 1, got {click!r}", where=record.where
            )
        hashed = [
            zlib.crc32(f"{name}={value.get(name)}".encode()) % self.buckets
            for name in self.categorical
        ]
        try:
            numbers = [float(value.get(name) or 0.0) for name in self.numeric]
        except (TypeError, ValueError):
            raise JoyError(
                "a numeric feature is no number",
                where=record.where,
                help="name the features with task: {categorical: […], numeric: […]}",
            ) from None
        squeezed = np.sign(numbers) * np.log1p(np.abs(numbers))  # counts have long tails
        return [
            {
                "categories": np.array(hashed),
                "numbers": squeezed,
                "label": np.array([-1 if click is None else int(click)]),
                "weight": np.ones(1),
            }
        ]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Categories [B, F], numbers [B, G], labels [B]."""
        import numpy as np
        import torch

        def stacked(name: str, kind: str) -> torch.Tensor:
            return torch.from_numpy(np.stack([s[name] for s in samples]).astype(kind))

        return {
            "categories": stacked("categories", "int64"),
            "numbers": stacked("numbers", "float32"),
            "labels": _inputs.numbers(samples, "label"),
        }

    def build(self, source: Any) -> Any:
        """A DeepFM of the asked sizes, with the weights of a folder if one is named."""
        import torch

        settings = dict(source.settings)
        if source.path is not None:
            settings = read_config(source.path)
        for key in settings:
            if key not in {*SIZES, "buckets", "categories", "numbers"}:
                raise JoyError(
                    f"'deepfm' has no setting '{key}'.{did_you_mean(key, SIZES)}",
                    where="model.from_config",
                )
        if settings.get("model_type", "deepfm") != "deepfm":
            raise JoyError("this task trains model_type deepfm", where="model.from_config")
        shape = {
            "buckets": self.buckets,
            "categories": len(self.categorical),
            "numbers": len(self.numeric),
        }
        torch.manual_seed(source.seed)
        model = deepfm({**SIZES, **settings, **shape})
        if source.path is not None:
            from safetensors.torch import load_model

            load_model(model, str(source.path / "model.safetensors"))
        return model.to(getattr(torch, source.dtype))

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        made: torch.Tensor = model(batch["categories"], batch["numbers"])
        return made

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Binary cross entropy."""
        import torch

        return torch.nn.functional.binary_cross_entropy_with_logits(
            output.float(), batch["labels"].float(), reduction="sum"
        )

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """The probability of a click."""
        found = []
        for share, label in zip(
            output.float().sigmoid().tolist(), batch["labels"].tolist(), strict=True
        ):
            known = {"reference": label} if label >= 0 else {}
            found.append({"prediction": int(share > 0.5), "score": share, **known})
        return found

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Area under the ROC curve, log loss and accuracy."""
        import torch
        from torchmetrics.functional.classification import binary_accuracy, binary_auroc

        known = [row for row in rows if "reference" in row]
        if not known:
            return {}
        shares = torch.tensor([row["score"] for row in known])
        truth = torch.tensor([row["reference"] for row in known])
        loss = torch.nn.functional.binary_cross_entropy(shares, truth.float())
        found = {"log_loss": float(loss), "accuracy": float(binary_accuracy(shares, truth))}
        if 0 < int(truth.sum()) < len(truth):
            found["auc"] = float(binary_auroc(shares, truth))
        return found


def first_features(context: TaskContext, label: str) -> dict[str, list[str]]:
    """Features by their kind in the first record."""
    for record, _ in records.read(context.files):
        known = {key: value for key, value in record.value.items() if key not in (label, "id")}
        texts = [key for key, value in known.items() if isinstance(value, str | bool)]
        numbers = [
            key
            for key, value in known.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        if texts or numbers:
            return {"categorical": texts, "numeric": numbers}
    raise JoyError("the data have no features", where=", ".join(map(str, context.files)) or None)


def read_config(folder: Path) -> dict[str, Any]:
    """The sizes of a saved model."""
    try:
        return dict(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError) as error:
        raise JoyError(
            f"cannot read the model's configuration: {error}", where=str(folder)
        ) from None


def deepfm(sizes: Mapping[str, Any]) -> Any:
    """The model; `sizes` as SIZES with buckets, categories and numbers."""
    import torch
    from torch import nn

    class DeepFm(nn.Module):
        """Logit = bias + first order + pairwise products + MLP."""

        def __init__(self) -> None:
            super().__init__()
            width = sizes["embedding_dim"]
            self.vectors = nn.Embedding(sizes["buckets"], width)
            self.weights = nn.Embedding(sizes["buckets"], 1)
            nn.init.normal_(self.vectors.weight, std=0.05)
            nn.init.zeros_(self.weights.weight)
            inputs = sizes["categories"] * width + sizes["numbers"]
            layers: list[nn.Module] = []
            for hidden in sizes["hidden"]:
                layers += [nn.Linear(inputs, hidden), nn.ReLU()]
                inputs = hidden
            self.deep = nn.Sequential(*layers, nn.Linear(inputs, 1))

        def forward(self, categories_BF: torch.Tensor, numbers_BG: torch.Tensor) -> torch.Tensor:
            """Logits [B]."""
            vectors_BFD = self.vectors(categories_BF)
            pairs_B = 0.5 * (vectors_BFD.sum(1).square().sum(-1) - vectors_BFD.square().sum((1, 2)))
            flat = torch.cat([vectors_BFD.flatten(1), numbers_BG.to(vectors_BFD.dtype)], 1)
            made: torch.Tensor = self.deep(flat).squeeze(-1)
            logits: torch.Tensor = made + pairs_B + self.weights(categories_BF).sum((1, 2))
            return logits

        def save_pretrained(self, folder: Path) -> None:
            """Sizes and weights, as `build` reads them."""
            from safetensors.torch import save_model

            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(dict(sizes), indent=1) + "\n")
            save_model(self, str(folder / "model.safetensors"))

    return DeepFm()


TASK = Ctr
