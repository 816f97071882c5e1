"""Supervised fine-tuning: the answer is learned, the question is only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import packing, records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks.task import (
    SampleSource,
    Task,
    next_token_sum,
    one_sample,
    rows,
)
from joymigrate.run.train.tokens import TokenCache

if TYPE_CHECKING:
    import torch

ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}  # ShareGPT's names
Span = tuple[int, int]


class Sft(Task):
    """Conversations, or prompts with completions."""

    PIPELINE: ClassVar[bool] = True
    SCHEMA: ClassVar[str] = (
        '{"messages": [{"role", "content"}, …]}, {"prompt", "completion"}, '
        '{"instruction", "input", "output"} or {"conversations": [{"from", "value"}, …]}'
    )
    OPTIONS: ClassVar[Mapping[str, Any]] = {"learn": "answers"}  # answers, or all

    def encode(self, record: records.Record) -> Sequence[Sample]:
        """Tokens with the ranges of the answers."""
        if self.options["learn"] not in ("answers", "all"):
            raise JoyError(f"'learn' takes answers or all, got {self.options['learn']!r}")
        messages = conversation(record)
        if messages is None:
            tokens, spans = self.pair(record)
        else:
            tokens, spans = self.chat(messages, record)
        if self.options["learn"] == "all":
            spans = [(0, len(tokens))]
        return one_sample(tokens, spans, self.context.max_length)

    def pair(self, record: records.Record) -> tuple[list[int], list[Span]]:
        """A prompt and its completion, as they are."""
        prompt = str(records.field(record, "prompt", "messages"))
        completion = str(records.field(record, "completion", "response", "answer"))
        head = [*self.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        tail = [*self.tokenizer(completion, add_special_tokens=False)["input_ids"]]
        if self.tokenizer.eos_token_id is not None:
            tail.append(self.tokenizer.eos_token_id)
        return head + tail, [(len(head), len(head) + len(tail))]

    def chat(
        self, messages: Sequence[Mapping[str, Any]], record: records.Record
    ) -> tuple[list[int], list[Span]]:
        """A conversation through the chat template; what the assistant says is learned."""
        if self.tokenizer.chat_template is None:
            raise JoyError(
                "the tokenizer has no chat template",
                where=record.where,
                help="name one with data.template, or use prompt and completion",
            )
        text = self.render(messages, record)
        pieces = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.render(messages[:index], record, prompt=True)
            until = self.render(messages[: index + 1], record)
            if not (text.startswith(until) and until.startswith(before)):
                raise JoyError(
                    "the chat template writes earlier turns differently once a turn follows, so "
                    "the answers cannot be told apart",
                    where=record.where,
                    help="set task.learn: all, or use another template",
                )
            pieces.append((len(before), len(until.rstrip("\n")) if index else len(until)))
        return self.with_offsets(text, pieces)

    def render(
        self, messages: Sequence[Mapping[str, Any]], record: records.Record, *, prompt: bool = False
    ) -> str:
        """The text of some messages; with `prompt` up to where the answer begins."""
        from jinja2 import TemplateError

        if not messages:
            return ""
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompt
            )
        except (TemplateError, ValueError) as error:
            raise JoyError(f"the chat template refuses: {error}", where=record.where) from None
        return str(text)

    def with_offsets(self, text: str, pieces: Sequence[Span]) -> tuple[list[int], list[Span]]:
        """Tokens of a text, and ranges of characters as ranges of tokens."""
        made = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = made["offset_mapping"]
        spans = []
        for begin, end in pieces:
            inside = [i for i, (a, b) in enumerate(offsets) if a >= begin and b <= end and b > a]
            if inside:
                spans.append((inside[0], inside[-1] + 1))
        return [*made["input_ids"]], spans

    def samples(self, cache: TokenCache) -> SampleSource:
        """Several conversations per row, or one."""
        kind = packing.Packed if self.context.packing else packing.Documents
        return kind(cache, self.context.max_length)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Rows of tokens, labels and positions."""
        length = self.context.max_length if self.context.fixed_length else None
        return rows(samples, self.tokenizer.pad_token_id or 0, length)

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy of the answers' tokens."""
        return next_token_sum(output, batch["labels"])


def conversation(record: records.Record) -> list[dict[str, Any]] | None:
    """The record's messages in one form, or None for a prompt with a completion."""
    value = record.value
    if value.get("messages") is not None:
        return [check_message(message, record) for message in items(value["messages"], record)]
    if value.get("conversations") is not None:
        return [
            check_message(
                {
                    "role": ROLES.get(str(one.get("from")), one.get("from")),
                    "content": one.get("value"),
                },
                record,
            )
            for one in items(value["conversations"], record)
        ]
    if value.get("instruction") is not None and value.get("output") is not None:
        asked = "\n".join(str(p) for p in (value["instruction"], value.get("input")) if p)
        return [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": str(value["output"])},
        ]
    return None


def items(value: Any, record: records.Record) -> list[Mapping[str, Any]]:
    """A list of objects."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise JoyError("messages are a list of objects with role and content", where=record.where)
    return value


def check_message(message: Mapping[str, Any], record: records.Record) -> dict[str, Any]:
    """A message with a role and a text."""
    if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
        raise JoyError(
            f"a message needs a role and a content, got {dict(message)!r}", where=record.where
        )
    return dict(message)


TASK = Sft
