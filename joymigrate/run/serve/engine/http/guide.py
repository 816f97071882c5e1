"""Guides: a grammar that every token must follow, for response_format and forced tool calls.

The grammar engine is llguidance; what it cannot express is refused, never loosened.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

from joymigrate.run.serve.engine.types import Stuck
from joymigrate.run.serve.web.errors import HttpRefusal

# Whitespace between JSON's parts is where an undecided model never ends.
COMPACT: Any = {"whitespace_flexible": False}
# What one grammar may take of llguidance's effort. Its own bounds let (a{1000}){1000} take 3 s for
# its first mask; with these it is refused within 0.1 s, and schemas of 1,000 fields still pass.
LEXER_FUEL, STEP_FUEL = 100_000, 50_000
PROBED = 2  # tokens that a new grammar is tried with, before a text depends on it


class GrammarState:
    """The state of one text under a grammar."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        """`matcher` is llguidance's, at the beginning of the grammar."""
        self.matcher = matcher
        self.words = (vocabulary + 31) // 32

    def mask(self) -> Any:
        """Which tokens may come next: int32 `[ceil(vocabulary / 32)]`, bit i % 32 of word i // 32.

        When the text is complete only the end of the sequence is left. Raises `Stuck` where
        nothing may come, and the text is not complete: llguidance then allows the end all the same.
        """
        import torch

        bits = bytearray(self.matcher.compute_bitmask())
        if reason := dead_end(self.matcher):
            raise Stuck(reason)
        return torch.frombuffer(bits, dtype=torch.int32)[: self.words]

    def accept(self, token: int) -> None:
        """The token that was chosen."""
        self.matcher.consume_token(token)


def dead_end(matcher: Any) -> str:
    """Why a grammar leads nowhere from here; empty where it goes on, or is fulfilled."""
    if matcher.is_error():
        return str(matcher.get_error().strip().splitlines()[0])
    if matcher.is_stopped() and not matcher.is_accepting():
        return f"nothing may follow ({matcher.stop_reason()})"
    return ""


def probe(matcher: Any) -> str:
    """Why a new grammar cannot be followed from its very beginning; empty where it can."""
    matcher = matcher.deep_copy()
    for _ in range(PROBED):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if (reason := dead_end(matcher)) or matcher.is_stopped() or not mask:
            return reason
        matcher.consume_token((mask & -mask).bit_length() - 1)
    return dead_end(matcher)


class Guides:
    """Makes guides for one model's tokens. The table of tokens is built when first needed."""

    def __init__(self, backend: Any, vocabulary: int, ends: tuple[int, ...]) -> None:
        """`backend` is the fast core of the tokenizer, None where it has none; `vocabulary` the
        width of the model's logits; `ends` the ids that end a text."""
        self.backend, self.vocabulary, self.ends = backend, vocabulary, ends
        self.table: Any = None

    def of_schema(self, schema: Any, param: str) -> Callable[[], GrammarState]:
        """A guide for JSON of this schema; raises `HttpRefusal` where it cannot be held to."""
        self.tokens()
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=COMPACT)
        except ValueError as error:
            raise HttpRefusal(400, f"not a JSON schema: {error}", param=param) from None
        return self.of(grammar, param)

    def of_regex(self, pattern: str, param: str) -> Callable[[], GrammarState]:
        """A guide for text that matches the whole expression."""
        self.tokens()
        from llguidance import LLMatcher

        return self.of(LLMatcher.grammar_from_regex(pattern), param)

    def of_choice(self, choices: tuple[str, ...], param: str) -> Callable[[], GrammarState]:
        """A guide for one of these texts."""
        lines = " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)
        return self.of_lark(f"start: {lines}", param)

    def of_lark(self, grammar: str, param: str) -> Callable[[], GrammarState]:
        """A guide for a Lark grammar."""
        self.tokens()
        from llguidance import LLMatcher

        return self.of(LLMatcher.grammar_from_lark(grammar), param)

    def of(self, grammar: str, param: str) -> Callable[[], GrammarState]:
        """A guide for llguidance's own form of a grammar, compiled once for all texts."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(initial_lexer_fuel=LEXER_FUEL, step_lexer_fuel=STEP_FUEL)
        matcher = LLMatcher(self.tokens(), grammar, log_level=0, limits=limits)
        if reason := dead_end(matcher) or probe(matcher):
            raise HttpRefusal(400, f"this grammar cannot be followed: {reason}", param=param)
        return lambda: GrammarState(matcher.deep_copy(), self.vocabulary)

    def tokens(self) -> Any:
        """The tokens' bytes, as the grammar engine wants them."""
        if self.table is None:
            self.table = self.build()
        return self.table

    def build(self) -> Any:
        if importlib.util.find_spec("llguidance") is None:
            raise HttpRefusal(
                400,
                "response_format, guided output and forced tool calls need llguidance on the "
                "server: pip install 'joymigrate[serve]'",
                code="unsupported_parameter",
            )
        from copy import copy

        from llguidance import LLTokenizer

        backend = self.backend
        if backend is None or not self.ends:
            raise HttpRefusal(
                400,
                "this model's tokenizer cannot be guided: it "
                + ("has no table of tokens" if backend is None else "has no end-of-sequence token"),
                code="unsupported_parameter",
            )
        backend = copy(backend)
        known = max(backend.get_vocab(with_added_tokens=True).values(), default=0) + 1
        size = max(self.vocabulary, known)  # ids that the model does not have are never drawn
        backend.no_padding()
        backend.no_truncation()
        try:
            return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=list(self.ends))
        except ValueError as error:
            raise HttpRefusal(
                400,
                f"this model's tokenizer cannot be guided: {error}",
                code="unsupported_parameter",
            ) from None
