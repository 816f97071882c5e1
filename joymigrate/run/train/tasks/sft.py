"""Supervised fine-tuning: the answer is learned, the question is only read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import chats, packing, records
from joymigrate.run.train.columns import Sample
from joymigrate.run.train.tasks._next_token import NextToken
from joymigrate.run.train.tasks.task import SampleSource, one_sample
from joymigrate.run.train.tokens import TokenCache

Span = tuple[int, int]


class Sft(NextToken):
    """Conversations, or prompts with completions."""

    SCHEMA: ClassVar[str] = (
        '{"messages": [{"role", "content"}, …]}, {"prompt", "completion"}, '
        '{"instruction", "input", "output"} or {"conversations": [{"from", "value"}, …]}; '
        "with system, tools, history and weights"
    )
    OPTIONS: ClassVar[Mapping[str, Any]] = {"learn": "answers"}  # answers, last, or all

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """Tokens with the ranges of the answers."""
        if self.options["learn"] not in ("answers", "last", "all"):
            raise JoyError(f"'learn' takes answers, last or all, got {self.options['learn']!r}")
        talk = chats.read(record)
        if talk is not None:
            return self.encode_chat(talk, record)
        return self.sample(*self.pair(record), record)

    def encode_chat(self, talk: chats.Chat, record: records.TrainingRecord) -> Sequence[Sample]:
        """Tokens of a conversation with the ranges of what is learned of it."""
        made = self.sample(*self.chat(talk, record), record)
        roles = {message["role"] for message in talk.messages}
        if not made and "assistant" not in roles:
            told = ", ".join(sorted(roles)) or "none"
            record.fate.dropped = f"no message has the role assistant; the roles are {told}"
        return made

    def sample(
        self, tokens: Sequence[int], spans: Sequence[Span], record: records.TrainingRecord
    ) -> Sequence[Sample]:
        """One sample, with every token a target where the job says so.

        An answer without a text would teach nothing but to end at once: it is not learned.
        """
        answers = spans[-1:] if self.options["learn"] == "last" else spans
        learned = [(0, len(tokens))] if self.options["learn"] == "all" else answers
        return one_sample(record, tokens, learned, self.context.max_length)

    def pair(self, record: records.TrainingRecord) -> tuple[list[int], list[Span]]:
        """A prompt and its completion, as they are."""
        prompt = record.text("prompt")
        completion = record.text("completion", "response", "answer")
        head = [*self.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        tail = [*self.tokenizer(completion, add_special_tokens=False)["input_ids"]]
        if self.tokenizer.eos_token_id is not None:
            tail.append(self.tokenizer.eos_token_id)
        spans = [(len(head), len(head) + len(tail))]
        return head + tail, spans if completion or not self.context.references else []

    def chat(
        self, talk: chats.Chat, record: records.TrainingRecord
    ) -> tuple[list[int], list[Span]]:
        """A conversation through the chat template; what the assistant says is learned."""
        if self.tokenizer.chat_template is None:
            raise JoyError(
                "the tokenizer has no chat template",
                where=record.where,
                help="name one with data.template, or use prompt and completion",
            )
        text = self.render(talk.messages, record, tools=talk.tools)
        self.check_written(talk, text, record)
        pieces = self.marked(talk, record) if self.marks else self.told_apart(talk, text, record)
        return self.with_offsets(text, pieces)

    @property
    def marks(self) -> bool:
        """Whether the template itself says what the assistant writes."""
        return (
            re.search(r"\{%-?\s*generation\s*-?%\}", str(self.tokenizer.chat_template)) is not None
        )

    def marked(self, talk: chats.Chat, record: records.TrainingRecord) -> list[Span]:
        """Where the template's generation blocks of the learned turns stand in the text."""
        from transformers.utils.chat_template_utils import render_jinja_template

        tools = list(talk.tools) or None
        rendered: Any = render_jinja_template(
            [list(talk.messages)],
            tools=tools,
            chat_template=self.tokenizer.get_chat_template(tools=tools),
            return_assistant_tokens_mask=True,
            **self.tokenizer.special_tokens_map,
        )
        _, (blocks,) = rendered
        turns = [
            learned
            for message, learned in zip(talk.messages, talk.learned, strict=True)
            if message["role"] == "assistant"
        ]
        if len(blocks) != len(turns):
            raise JoyError(
                f"the chat template marks {len(blocks)} generations, and the assistant has "
                f"{len(turns)} turns",
                where=record.where,
            )
        return [span for span, learned in zip(blocks, turns, strict=True) if learned]

    def told_apart(self, talk: chats.Chat, text: str, record: records.TrainingRecord) -> list[Span]:
        """Where the learned turns stand in the text, by rendering it up to each of them."""
        pieces = []
        for index, learned in enumerate(talk.learned):
            if not learned:
                continue
            before = self.render(talk.messages[:index], record, prompt=True, tools=talk.tools)
            until = self.render(talk.messages[: index + 1], record, tools=talk.tools)
            if not (text.startswith(until) and until.startswith(before)):
                raise JoyError(
                    "the chat template writes earlier turns differently once a turn follows, so "
                    "the answers cannot be told apart",
                    where=record.where,
                    help="set task.learn: all, or use a template with generation blocks",
                )
            pieces.append((len(before), len(until.rstrip("\n")) if index else len(until)))
        return pieces

    def check_written(self, talk: chats.Chat, text: str, record: records.TrainingRecord) -> None:
        """Refuse a template that passes over the record's tools, calls or what is to be learned."""
        if talk.tools and self.render(talk.messages, record) == text:
            self.not_written("'tools'", record)
        solid = "".join(text.split())
        for message, learned in zip(talk.messages, talk.learned, strict=True):
            for call in message.get("tool_calls", ()):
                if str(call["function"]["name"]) not in text:
                    self.not_written(
                        f"'tool_calls', the call of {call['function']['name']}", record
                    )
            for key in ("content", "reasoning_content") if learned else ():
                said = "".join(message.get(key, "").split())
                if said not in solid and json.dumps(said, ensure_ascii=False)[1:-1] not in solid:
                    self.not_written(f"'{key}', which is to be learned", record)

    def not_written(self, what: str, record: records.TrainingRecord) -> None:
        """What the record has and the text has not."""
        raise JoyError(
            f"the chat template does not write {what}",
            where=record.where,
            help="name a template that does with data.template",
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        record: records.TrainingRecord,
        *,
        prompt: bool = False,
        tools: Sequence[Any] = (),
    ) -> str:
        """The text of some messages; with `prompt` up to where the answer begins."""
        from jinja2 import TemplateError

        if not messages:
            return ""
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompt,
                tools=list(tools) or None,
            )  # fmt: skip
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
        kind = packing.PackedDocuments if self.context.packing else packing.Documents
        return kind(cache, self.context.max_length)


TASK = Sft
