"""Supervised fine-tuning: the answer is learned, the question is only read."""

from __future__ import annotations

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
    OPTIONS: ClassVar[Mapping[str, Any]] = {"learn": "answers"}  # answers, or all

    def encode(self, record: records.Record) -> Sequence[Sample]:
        """Tokens with the ranges of the answers."""
        if self.options["learn"] not in ("answers", "all"):
            raise JoyError(f"'learn' takes answers or all, got {self.options['learn']!r}")
        talk = chats.read(record)
        if talk is None:
            tokens, spans = self.pair(record)
        else:
            self.unused.update(talk.unused)
            tokens, spans = self.chat(talk, record)
        if self.options["learn"] == "all":
            spans = [(0, len(tokens))]
        return one_sample(tokens, spans, self.context.max_length)

    def pair(self, record: records.Record) -> tuple[list[int], list[Span]]:
        """A prompt and its completion, as they are."""
        prompt = records.text(record, "prompt")
        completion = records.text(record, "completion", "response", "answer")
        head = [*self.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        tail = [*self.tokenizer(completion, add_special_tokens=False)["input_ids"]]
        if self.tokenizer.eos_token_id is not None:
            tail.append(self.tokenizer.eos_token_id)
        return head + tail, [(len(head), len(head) + len(tail))]

    def chat(self, talk: chats.Chat, record: records.Record) -> tuple[list[int], list[Span]]:
        """A conversation through the chat template; what the assistant says is learned."""
        if self.tokenizer.chat_template is None:
            raise JoyError(
                "the tokenizer has no chat template",
                where=record.where,
                help="name one with data.template, or use prompt and completion",
            )
        messages, tools = talk.messages, talk.tools
        text = self.render(messages, record, tools=tools)
        self.check_written(talk, text, record)
        pieces = []
        for index, learned in enumerate(talk.learned):
            if not learned:
                continue
            before = self.render(messages[:index], record, prompt=True, tools=tools)
            until = self.render(messages[: index + 1], record, tools=tools)
            if not (text.startswith(until) and until.startswith(before)):
                raise JoyError(
                    "the chat template writes earlier turns differently once a turn follows, so "
                    "the answers cannot be told apart",
                    where=record.where,
                    help="set task.learn: all, or use another template",
                )
            pieces.append((len(before), len(until.rstrip("\n")) if index else len(until)))
        return self.with_offsets(text, pieces)

    def check_written(self, talk: chats.Chat, text: str, record: records.Record) -> None:
        """Refuse a template that passes over the record's tools or calls."""
        calls = [one for message in talk.messages for one in message.get("tool_calls", ())]
        names = [str(call["function"]["name"]) for call in calls]
        lost = next((name for name in names if name not in text), None)
        if lost is not None:
            what = f"'tool_calls': the chat template does not write the call of {lost}"
        elif talk.tools and self.render(talk.messages, record) == text:
            what = "'tools': the chat template does not write them"
        else:
            return
        help = "name a template that does with data.template"
        raise JoyError(what, where=record.where, help=help)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        record: records.Record,
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
        kind = packing.Packed if self.context.packing else packing.Documents
        return kind(cache, self.context.max_length)


TASK = Sft
