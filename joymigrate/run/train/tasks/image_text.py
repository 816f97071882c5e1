"""Image-text fine-tuning: answers about images, for models of the Qwen2-VL kind.

Images are brought to one size, cut into patches by the library's processor, and stand in the text
as so many image tokens.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs, _language
from joymigrate.run.train.tasks.sft import Sft
from joymigrate.run.train.tasks.task import Task, TaskContext, next_token_sum, rows

if TYPE_CHECKING:
    import torch

START, IMAGE, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"


class ImageText(Task):
    """Conversations about images, or image, prompt and completion."""

    MODEL: ClassVar[str] = "AutoModelForImageTextToText"
    SCHEMA: ClassVar[str] = (
        '{"image": "path beside the data", "prompt": "…", "completion": "…"}, or '
        '{"images": ["…", …], "messages": [{"role": "user", "content": "<image>What is it?"}, …]}'
    )
    FIELDS: ClassVar[Mapping[str, str]] = {**Task.FIELDS, "image": "uint8"}
    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **{"size": 224, "patch": 14, "merge": 2, "max_new_tokens": 64}
    }

    def __init__(self, context: TaskContext) -> None:
        super().__init__(with_signs(context))
        self.size = int(self.options["size"])
        cell = int(self.options["patch"]) * int(self.options["merge"])
        if self.size % cell:
            raise JoyError(f"size {self.size} is no multiple of patch x merge = {cell}")
        self.tokens_per_image = (self.size // cell) ** 2
        self.sft = Sft(dataclasses.replace(self.context, options={}, packing=False))
        self.processor: Any = None

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample; one whose images were cut off is left out."""
        import numpy as np

        value = dict(record.value)
        given = record.require("images", "image")
        given = given if isinstance(given, list) else [given]
        if not given:
            raise JoyError("the record has no image", where=record.where)
        value.pop("images", None)
        value.pop("image", None)
        images = [_inputs.picture(one, self.size, self.context, record) for one in given]
        sign = START + IMAGE * self.tokens_per_image + END
        if value.get("messages") is not None:
            value["messages"] = place_images(value["messages"], sign, len(images), record)
        else:
            value["prompt"] = sign * len(images) + record.text("prompt")
            if not self.context.references:
                value.setdefault("completion", "")
        text = record.with_value(value)
        made = self.sft.encode(text)
        record.used.update(text.used)
        wanted = self.tokens_per_image * len(images)
        number = self.tokenizer.convert_tokens_to_ids(IMAGE)
        pixels = np.concatenate([image.reshape(-1) for image in images])
        kept = [one for one in made if int((one["tokens"] == number).sum()) == wanted]
        if made and not kept:
            record.fate.dropped = "its images end behind data.max_length"
        return [{**one, "image": pixels} for one in kept]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Rows of tokens and labels, patches of all images, and which tokens are images."""
        made = [_language.document(s["tokens"], s["spans"]) for s in samples]
        batch = rows(made, self.tokenizer.pad_token_id or 0)
        del batch["position_ids"]  # the model counts its own, in three dimensions
        _, mask = _inputs.pad_rows([sample["tokens"] for sample in samples], 0)
        images = [
            image
            for sample in samples
            for image in sample["image"].reshape(-1, self.size, self.size, 3)
        ]
        cut = self.patches(images)
        number = self.tokenizer.convert_tokens_to_ids(IMAGE)
        return {
            **batch,
            "attention_mask": mask,
            "pixel_values": cut["pixel_values"],
            "image_grid_thw": cut["image_grid_thw"],
            "mm_token_type_ids": (batch["input_ids"] == number).int(),
        }

    def patches(self, images: Sequence[Any]) -> Mapping[str, Any]:
        """`pixel_values` [patches, values] and `image_grid_thw` [images, 3]."""
        if self.processor is None:
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
                Qwen2VLImageProcessorPil,
            )

            pixels = self.size * self.size
            make: Any = Qwen2VLImageProcessorPil
            self.processor = make(
                patch_size=int(self.options["patch"]),
                merge_size=int(self.options["merge"]),
                size={"shortest_edge": pixels, "longest_edge": pixels},
            )
        found: Mapping[str, Any] = self.processor(images=list(images), return_tensors="pt")
        return found

    def build(self, source: Any) -> Any:
        """The model; a new one learns the numbers of the tokenizer's image signs."""
        numbers = {
            name: self.tokenizer.convert_tokens_to_ids(sign)
            for name, sign in (
                ("vision_start_token_id", START),
                ("image_token_id", IMAGE),
                ("vision_end_token_id", END),
            )
        }
        if source.path is None:
            text = {"vocab_size": len(self.tokenizer), **source.settings.get("text_config", {})}
            source = dataclasses.replace(source, settings={**source.settings, "text_config": text})
            return source.transformers(self.MODEL, **numbers)
        model = source.transformers(self.MODEL)
        if model.config.image_token_id != numbers["image_token_id"]:
            raise JoyError(
                f"the model's image token is {model.config.image_token_id}, the tokenizer's "
                f"'{IMAGE}' is {numbers['image_token_id']}",
                where=str(source.path),
                help="use the model's own tokenizer",
            )
        return model

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """Text and images."""
        return {name: value for name, value in batch.items() if name != "labels"}

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy of the answers' tokens."""
        return next_token_sum(output, batch["labels"])

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """The answer's most likely tokens, given the true ones before; whether all are right."""
        found = _language.teacher_forced(output, batch, self.tokenizer)
        return [{**one, "exact": one["correct"] == one["targets"]} for one in found]

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Perplexity, token accuracy, and the share of answers right in every token."""
        found = _language.token_metrics(rows)
        if found:
            found["exact_match"] = sum(bool(row["exact"]) for row in rows) / len(rows)
        return found


def with_signs(context: TaskContext) -> TaskContext:
    """A tokenizer that knows the image signs; a copy where they had to be added."""
    known = context.tokenizer.get_vocab()
    missing = [sign for sign in (START, IMAGE, END) if sign not in known]
    if not missing:
        return context
    tokenizer = copy.deepcopy(context.tokenizer)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": missing}, replace_extra_special_tokens=False
    )
    return dataclasses.replace(context, tokenizer=tokenizer)


def place_images(messages: Any, sign: str, images: int, record: records.TrainingRecord) -> Any:
    """Messages with every `<image>` as image tokens; as many as there are images."""
    if not isinstance(messages, list):
        return messages  # Sft says what is wrong
    made = [
        {**one, "content": one["content"].replace("<image>", sign)}
        if isinstance(one, Mapping) and isinstance(one.get("content"), str)
        else one
        for one in messages
    ]
    count = sum(str(one.get("content")).count("<image>") for one in messages)
    if count != images:
        raise JoyError(
            f"the messages have {count} '<image>', the record {images} images", where=record.where
        )
    return made


TASK = ImageText
