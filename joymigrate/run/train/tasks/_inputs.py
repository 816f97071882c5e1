"""What several tasks read alike: texts as padded rows, class names, images.

Shapes: B samples, L tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train import records
from joymigrate.run.train.columns import Array, Batch, Sample
from joymigrate.run.train.digests import of_text
from joymigrate.run.train.tasks import _language
from joymigrate.run.train.tasks.task import Task, TaskContext, token_sum

MANY_CLASSES = 10_000  # so many names are no classes


def token_ids(
    record: records.TrainingRecord, tokenizer: Any, text: str, length: int, pair: str | None = None
) -> Array:
    """Tokens of a text (or a pair), with the signs the tokenizer adds, cut at `length`."""
    import numpy as np

    if not text.strip():
        record.fate.notes.add("an empty text is read")
    made = tokenizer(text, pair, truncation=True, max_length=length)["input_ids"]
    if len(made) >= length:
        record.fate.cut += len(tokenizer(text, pair, verbose=False)["input_ids"]) - len(made)
    return np.asarray(made or [tokenizer.pad_token_id or 0])


def pad_rows(rows: Sequence[Array], pad: int, fill: int | None = None) -> tuple[Any, Any]:
    """Rows as [B, L] int64 padded on the right with `fill` (default `pad`), and their mask."""
    import numpy as np
    import torch

    longest = max(len(row) for row in rows)
    made_BL = np.full((len(rows), longest), pad if fill is None else fill, dtype=np.int64)
    mask_BL = np.zeros((len(rows), longest), dtype=np.int64)
    for index, row in enumerate(rows):
        made_BL[index, : len(row)] = row
        mask_BL[index, : len(row)] = 1
    return torch.from_numpy(made_BL), torch.from_numpy(mask_BL)


def texts(samples: Sequence[Sample], tokenizer: Any) -> Batch:
    """`input_ids` and `attention_mask` of the samples' `tokens`."""
    ids, mask = pad_rows([sample["tokens"] for sample in samples], tokenizer.pad_token_id or 0)
    return {"input_ids": ids, "attention_mask": mask}


def numbers(samples: Sequence[Sample], name: str, kind: str = "int64") -> Any:
    """One number per sample [B]."""
    import numpy as np
    import torch

    return torch.from_numpy(np.array([sample[name][0] for sample in samples], dtype=kind))


class PaddedTexts(Task):
    """A task of models that read padded texts and say something of each."""

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """Tokens, and which of them are no padding."""
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    def forward(self, model: Any, batch: Batch) -> Any:
        """The model's logits [B, …]."""
        return model(**self.inputs(batch)).logits


class GuessedTokens(PaddedTexts):
    """True tokens [B, L] at some places, which the model's logits are compared with."""

    def objective(self, output: Any, batch: Batch) -> Any:
        """Cross entropy of these tokens."""
        return token_sum(output, batch["labels"])

    def predictions(self, output: Any, batch: Batch) -> list[dict[str, Any]]:
        """The most likely tokens there."""
        return _language.likely_tokens(output, batch, self.tokenizer)


class ScoredTexts(PaddedTexts):
    """One number for each text."""

    MODEL: ClassVar[str] = "AutoModelForSequenceClassification"
    HEAD: ClassVar[Mapping[str, Any]] = {"num_labels": 1}

    def build(self, source: Any) -> Any:
        """A model with one output."""
        return source.transformers(
            self.MODEL, pad_token_id=self.tokenizer.pad_token_id, **self.HEAD
        )

    def forward(self, model: Any, batch: Batch) -> Any:
        """Numbers [B]."""
        return super().forward(model, batch).squeeze(-1)


class Pictures(Task):
    """A task whose records name images, which are brought to the option `size`."""

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self.size = int(self.options["size"])

    def identity(self) -> str:
        """Also where the images are."""
        return of_text(super().identity(), *(str(path.parent) for path in self.context.files[:1]))


def class_names(context: TaskContext, given: Any, *keys: str) -> tuple[str, ...]:
    """The option `labels`, or all different values of a field in the training files, sorted."""
    if given:
        names = tuple(str(name) for name in given)
        if len(set(names)) != len(names) or len(names) < 2:
            raise JoyError(f"labels are two or more different names, got {given!r}", where="task")
        return names
    found: set[str] = set()
    for record, _ in records.read(context.files):
        found.update(values(record.value, keys))
        if len(found) > MANY_CLASSES:
            raise JoyError(f"more than {MANY_CLASSES} different labels", where=record.where)
    if len(found) < 2:
        raise JoyError(
            f"the data have {len(found)} different labels; two are the least",
            where=", ".join(map(str, context.files)),
            help="give task: {labels: [a, b, …]}, or check the records' field "
            + " or ".join(f"'{key}'" for key in keys),
        )
    return tuple(sorted(found, key=natural))


def values(value: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """The names that a record has in the first of `keys` that it has."""
    for key in keys:
        if value.get(key) is not None:
            held = value[key]
            return [str(one) for one in held] if isinstance(held, list) else [str(held)]
    return []


def natural(name: str) -> tuple[int, str]:
    """Numbers in their order, before words."""
    return (int(name), "") if name.isdecimal() else (1 << 62, name)


def class_of(names: Sequence[str], label: Any, record: records.TrainingRecord) -> int:
    """The number of a label; `JoyError` with the nearest name when it is none."""
    text = str(label)
    if isinstance(label, float) and not label.is_integer():
        record.fate.notes.add(
            "a label that is no whole number is a class; task: regression learns it"
        )
    if text not in names:
        raise JoyError(
            f"unknown label '{text}'.{did_you_mean(text, names)}",
            where=record.where,
            help=f"the task's labels are {', '.join(names[:20])}",
        )
    return names.index(text)


def head_settings(names: Sequence[str]) -> dict[str, Any]:
    """What a configuration says about its classes."""
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def class_rows(logits_BC: Any, batch: Batch, names: Sequence[str]) -> list[dict[str, Any]]:
    """The most likely class per sample, its probability, and the true one where known."""
    found = []
    shares_BC = logits_BC.float().softmax(-1)
    for row, label in enumerate(batch["labels"].tolist()):
        best = int(shares_BC[row].argmax())
        one = {"prediction": names[best], "score": float(shares_BC[row, best])}
        found.append(one | ({"reference": names[label]} if label >= 0 else {}))
    return found


def class_metrics(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Accuracy and macro F1."""
    import torch
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

    known = [row for row in rows if "reference" in row]
    if not known:
        return {}
    guess = torch.tensor([names.index(row["prediction"]) for row in known])
    truth = torch.tensor([names.index(row["reference"]) for row in known])
    count = len(names)
    return {
        "accuracy": float(multiclass_accuracy(guess, truth, count, average="micro")),
        "f1_macro": float(multiclass_f1_score(guess, truth, count, average="macro")),
    }


def picture(value: Any, size: int, context: TaskContext, record: records.TrainingRecord) -> Array:
    """An image as [size, size, 3] uint8: a path beside the data, base64, or raw bytes."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(open_image(value, context)) as image:
            made = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
            found: Array = np.asarray(made, dtype=np.uint8)
            return found
    except (OSError, ValueError, UnidentifiedImageError) as error:
        raise JoyError(f"cannot read the image: {error}", where=record.where) from None


def open_image(value: Any, context: TaskContext) -> Any:
    """Where an image's bytes are: a path, or a buffer."""
    import base64
    import io

    if isinstance(value, Mapping):  # as Parquet files of image data hold it
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return io.BytesIO(value)
    text = str(value)
    if text.startswith("data:image/"):
        return io.BytesIO(base64.b64decode(text.partition(",")[2]))
    folder = context.files[0].parent if context.files else Path()
    return folder / text
