"""Reading a stream while it is relayed: byte for byte, in any pieces, up to the first bad event."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.run.serve.evidence.failures import is_garbage
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.web.apis import GENERATE

DONE = b"data: [DONE]\n\n"


def event(text: str | None, finish: str | None = None, chat: bool = True, **more: object) -> bytes:
    choice: dict[str, object] = {"index": 0}
    if chat:
        choice["delta"] = {} if text is None else {"content": text}
    else:
        choice["text"] = text or ""
    body = {"id": "c", "choices": [{**choice, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *marks], [*marks, len(data)], strict=True)]


def feed(parts: list[bytes], stream: RelayedStream | None = None) -> tuple[bytes, RelayedStream]:
    stream = stream or RelayedStream()
    out = b""
    for part in parts:
        out += stream.feed(part)
        if stream.failure:
            break
    return out, stream


texts = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from('"\\\n!词😀 \u2028\ufffdab')),
    min_size=0, max_size=8,
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(texts, max_size=40), st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_in_any_pieces_it_is_the_same_stream(
    pieces: list[str], places: list[int], chat: bool
) -> None:
    data = b"".join(event(text, chat=chat) for text in pieces) + event(None, "stop", chat) + DONE
    whole, one = feed([data])
    parts, many = feed(cut(data, places))
    assert (whole, one.failure, one.pieces) == (parts, many.failure, many.pieces)
    if one.failure is None:
        assert whole == data
        assert one.done
        assert "".join(one.pieces) == "".join(pieces)
    else:
        assert one.failure == "garbage"
        assert data.startswith(whole)


BAD = [
    b"data: {\n\n",
    b"data: 3\n\n",
    b'data: {"a": "\x01"}\n\n',
    b'data: {"id": "c", "choices": [{"x": NaN}]}\n\n',
]


@given(st.integers(0, 30), st.sampled_from(BAD))
def test_everything_before_a_bad_event_is_good(before: int, bad: bytes) -> None:
    good = b"".join(event(f" w{i}") for i in range(before))
    out, stream = feed([good + bad + event("after") + DONE])
    assert out == good
    assert stream.failure == "invalid_json"
    assert stream.pieces == [f" w{i}" for i in range(before)]


@given(st.integers(0, 20), st.binary(min_size=1, max_size=6))
def test_a_frame_hides_no_broken_text(before: int, inside: bytes) -> None:
    """A stream's frame is known after a few events; what stands in it must still be JSON."""
    good = b"".join(event(f" w{i}") for i in range(8 + before))
    strange = event("@@").replace(b"@@", inside)
    out, stream = feed([good + strange + event(" z") + event(None, "stop") + DONE])
    try:
        json.loads(strange[6:].decode("utf-8"), strict=True)
        valid = True
    except ValueError:
        valid = False
    assert (stream.failure != "invalid_json") == valid
    if not valid:
        assert out == good


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (event("a") + event(None, "stop") + DONE, None),
        (event("a") + event(None, "stop"), None),
        (event("a"), "truncated"),
        (event("a") + DONE, "missing_finish"),
        (event("a") + b'data: {"error": {"message": "x"}}\n\n', "error_after_200"),
        (event("a") + event(None, "stop") + b'data: {"id"', "truncated"),
        (b": ping\n\n" + event("a", "stop") + DONE, None),
        (b"event: message\n" + event("a", "stop") + DONE, None),
        ((event("a") + event(None, "stop") + DONE).replace(b"\n", b"\r\n"), None),
        (b'data: {"error": null, "choices": []}\n\n' + event("a", "stop") + DONE, None),
    ],
)
def test_how_a_stream_ends(data: bytes, failure: str | None) -> None:
    out, stream = feed([data])
    assert stream.end() == failure
    if failure is None:
        assert out == data


def test_every_choice_must_finish() -> None:
    two = event("a").replace(b'"index": 0', b'"index": 1')
    _, stream = feed([event("a", "stop") + two + DONE])
    assert stream.failure == "missing_finish"


def test_a_stream_of_another_kind_need_not_say_why_it_ended() -> None:
    data = b'data: {"text_output": "a"}\n\n'
    out, stream = feed([data], RelayedStream(GENERATE.form))
    assert (out, stream.end(), stream.pieces) == (data, None, ["a"])


@pytest.mark.parametrize(
    ("pieces", "garbage"),
    [
        (["!"] * 16, True),
        (["!!!!"] * 4, True),
        ([" the"] * 32, True),
        ([" the"] * 31, False),
        (["-"] * 200, False),
        ([" |"] * 64, False),
        (["wow", "!!!", " nice"], False),
        (["\ufffd"] * 5 + ["a" * 30], False),
        (["a\ufffd\ufffd"] * 10, True),
        ([f" {i}" for i in range(500)], False),
    ],
)
def test_garbage_is_told_from_text(pieces: list[str], garbage: bool) -> None:
    assert is_garbage("".join(pieces)) == garbage


def test_ordinary_text_is_never_garbage() -> None:
    rng = random.Random(0)
    words = ["a", "the", "0", "}", "  ", "\n", "好", "!", "x = 1", "def"]
    for _ in range(300):
        text = [rng.choice(words) for _ in range(200)]
        assert not is_garbage("".join(text))
