"""Streaming text: whole characters, and stop strings wherever tokens are cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.run.serve.engine.text import Detokeniser, TextStream


class Bytes:
    """A tokenizer whose tokens are pieces of bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Pieces of the given sizes, the last one whatever is left."""
    pieces, place = [], 0
    for size in sizes:
        pieces.append(data[place : place + size])
        place += size
    return [piece for piece in (*pieces, data[place:]) if piece]


@given(st.text(max_size=40), st.lists(st.integers(1, 5), max_size=60))
def test_the_pieces_are_the_text_and_no_character_is_split(text: str, sizes: list[int]) -> None:
    pieces = cut(text.encode("utf-8", errors="replace"), sizes)
    detokeniser = Detokeniser(Bytes(pieces), [], skip_special=True)
    parts = [detokeniser.feed([i]) for i in range(len(pieces))]
    assert "".join(parts) + detokeniser.finish() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_bytes_that_are_no_text_come_out_without_waiting_for_ever() -> None:
    pieces = [b"\xff"] * 10 + [b"a"]
    detokeniser = Detokeniser(Bytes(pieces), [], skip_special=True)
    parts = [detokeniser.feed([i]) for i in range(11)]
    assert parts[9] != ""
    assert "".join(parts) == "\ufffd" * 10 + "a"


@given(
    st.text(alphabet="ab你é", max_size=30),
    st.lists(st.integers(1, 4), max_size=40),
    st.lists(st.text(alphabet="ab你é", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_text_ends_before_the_stop_string_that_ends_first(
    text: str, sizes: list[int], stops: list[str], include: bool
) -> None:
    pieces = cut(text.encode(), sizes)
    stream = TextStream(
        Detokeniser(Bytes(pieces), [], skip_special=True), stops, include_stop=include
    )
    got = ""
    for i in range(len(pieces)):
        got += stream.feed([i], last=i == len(pieces) - 1)
        if stream.hit is not None:
            break
    ends = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert (got, stream.hit) == (text, None)
        return
    # The stop string that ends first; of two that end together, the one that begins first.
    end, start, word = min(ends)
    assert stream.hit == word
    assert got == (text[:end] if include else text[:start])


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        ([b"Hello", b" st", b"op", b" now"], "Hello "),
        ([b"x", b"stopstop"], "x"),
        ([b"s", b"t", b"o", b"p"], ""),
        ([b"sto", b"rm stop"], "storm "),
    ],
)
def test_a_stop_string_is_found_across_tokens(pieces: list[bytes], want: str) -> None:
    stream = TextStream(Detokeniser(Bytes(pieces), [], skip_special=True), ["stop"])
    got = ""
    for i in range(len(pieces)):
        got += stream.feed([i])
        if stream.hit:
            break
    assert (got, stream.hit) == (want, "stop")


def test_a_stop_string_is_found_when_its_last_byte_comes_in_another_token() -> None:
    data = "a你好b".encode()
    pieces = [data[:2], data[2:6], data[6:]]
    stream = TextStream(Detokeniser(Bytes(pieces), [], skip_special=True), ["你好"])
    parts = []
    for i in range(3):
        parts.append(stream.feed([i]))
        if stream.hit:
            break
    assert (parts, stream.hit) == (["a", "", ""], "你好")


def test_before_min_tokens_a_stop_string_does_not_stop() -> None:
    pieces = [b"stop ", b"stop"]
    stream = TextStream(Detokeniser(Bytes(pieces), [], skip_special=True), ["stop"])
    assert stream.feed([0], may_stop=False) == "stop "
    assert stream.feed([1]) == ""
    assert stream.hit == "stop"
