"""Reasoning told apart from the answer."""

from __future__ import annotations

import pytest

from joymigrate.run.serve.engine.http.thoughts import (
    INSIDE,
    START,
    ThoughtReader,
    find_marks,
)


def read(pieces: list[str], place: str) -> tuple[str, str]:
    reader = ThoughtReader("<think>", "</think>", place)
    found = [
        reader.feed(piece, 1, last=number == len(pieces) - 1) for number, piece in enumerate(pieces)
    ]
    return "".join(one for one, _ in found), "".join(two for _, two in found)


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "place", "thoughts", "words"),
    [
        ("<think>\nwell\n</think>\n\nYes.", START, "\nwell\n", "Yes."),
        ("well</think>\n\nYes.\n\nAnd", INSIDE, "well", "Yes.\n\nAnd"),
        ("well, 1 < 2 </thin", INSIDE, "well, 1 < 2 </thin", ""),
        ("Yes <think>no</think>", START, "", "Yes <think>no</think>"),
        ("<thin", START, "", "<thin"),
        ("\n<think></think>Yes", START, "", "Yes"),
        ("", START, "", ""),
        ("a</think>b</think>c", INSIDE, "a", "b</think>c"),
    ],
)
def test_thoughts_and_words_are_told_apart_however_the_text_arrives(
    text: str, place: str, thoughts: str, words: str, size: int
) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)] or [""]
    assert read(pieces, place) == (thoughts, words)


def test_tokens_of_thoughts_are_counted() -> None:
    reader = ThoughtReader("<think>", "</think>", INSIDE)
    for piece in ("a", "b", "</think>", "c", "d"):
        reader.feed(piece, 1, last=False)
    assert reader.tokens == 3


def test_marks_are_those_that_the_template_knows() -> None:
    qwen = "{%- if '</think>' in content %}…{% endif %}"
    assert find_marks(qwen) == ("<think>", "</think>")
    assert find_marks("{{ message.content }}") is None
