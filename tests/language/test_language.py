"""Texts keep their template and fields; a language fills in its own template."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.language import (
    Language,
    Text,
    pad,
    punctuate,
    sidecar,
    traits,
    width,
    with_texts,
)


def test_a_text_is_its_english_sentence() -> None:
    text = Text("use {to}", to="npu-smi")
    assert text == "use npu-smi"
    assert json.dumps([text]) == '["use npu-smi"]'


def test_braces_that_are_no_field_stay() -> None:
    assert Text("--resources='{\"{name}\": N}'", name="npu") == "--resources='{\"npu\": N}'"
    assert Text("`f'{x}'` of {chip}", chip="c") == "`f'{x}'` of c"


def test_a_field_is_filled_in_once() -> None:
    assert Text("{a} {b}", a="{b}", b="x") == "{b} x"


def test_chinese_comes_from_the_template_and_its_fields() -> None:
    say = Language("zh")
    assert say(Text("use {to}", to="npu-smi")) == "改用 npu-smi"
    nested = Text("{name}: {note}", name="amp", note=Text("not on {chip}", chip="musa"))
    assert say(nested) == "amp：musa 上没有"
    assert Language("en")(nested) == "amp: not on musa"


def test_joined_texts_are_translated_part_by_part() -> None:
    joined = Text.join("; ", ["", Text("use {to}", to="x"), "no wheel for aarch64"])
    assert joined == "use x; no wheel for aarch64"
    assert Language("zh")(joined) == "改用 x；没有 aarch64 的 wheel"
    assert Language("zh")(Text("use {to}", to="x") + Text("; add {names}", names="y")) == (
        "改用 x；另加 y"
    )


def test_joined_texts_that_stay_english_keep_their_punctuation() -> None:
    assert Language("zh")(Text.join("; ", ["a thing", "another thing"])) == "a thing; another thing"


def test_an_unknown_text_stays_english() -> None:
    assert Language("zh")("nobody has translated this") == "nobody has translated this"
    assert Language("zh")(Text("nobody said {x}", x="y")) == "nobody said y"


def test_a_text_survives_another_process() -> None:
    text = Text("{p0}; {p1}", p0=Text("use {to}", to="x"), p1="no wheel for aarch64")
    back = pickle.loads(pickle.dumps(text))
    assert Language("zh")(back) == Language("zh")(text) == "改用 x；没有 aarch64 的 wheel"


def test_a_text_survives_json_by_what_is_written_beside_it() -> None:
    document = with_texts({"reason": Text.join("; ", [Text("use {to}", to="x"), "not read"])})
    read = json.loads(json.dumps(document))
    assert Language("zh", read["texts"])(read["reason"]) == "改用 x；未读取"


def test_nothing_is_written_beside_plain_texts() -> None:
    assert with_texts({"a": ["not read", 1, None]}) == {"a": ["not read", 1, None]}
    assert sidecar(["not read"]) == {}


def test_an_unknown_language_names_the_nearest() -> None:
    with pytest.raises(JoyError, match="Did you mean 'zh'"):
        Language("zhh")


@given(st.text(), st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), st.text()))
def test_any_template_can_be_pickled_and_said(template: str, fields: dict[str, str]) -> None:
    text = Text(template, **fields)
    assert pickle.loads(pickle.dumps(text)) == text
    assert Language("en")(text) == text


def test_chinese_takes_two_columns() -> None:
    assert width("算子 aten::add") == 4 + 1 + 9
    assert pad("处", 4) == "处  "
    assert pad("sites", 4) == "sites"


def test_punctuation_between_chinese_parts_is_full_width() -> None:
    assert punctuate("{p0}; {p1} ({note})", traits("zh")) == "{p0}；{p1}（{note}）"


def test_a_text_of_one_part_alone_is_said_as_that_part() -> None:
    part = Text("use {to}", to="x")
    document = with_texts({"a": Text("{p0}", p0=part), "b": Text("{p0}", p0="not read")})
    say = Language("zh", document["texts"])
    assert say(str(document["a"])) == "改用 x"
    assert say(str(document["b"])) == "未读取"
