"""The command `explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.joy import Joy, joy_with


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Joy:
    monkeypatch.chdir(tmp_path)
    return joy_with(capsys)


def test_a_rule_is_explained_with_its_examples(joy: Joy) -> None:
    told = joy("explain", "JM130")
    assert (told.code, told.err) == (0, "")
    assert told.lines[3] == "JM130:"
    assert told.lines[4].endswith(" (`collective-backend`)")
    assert told.lines[5].startswith("  Tier: safe (joymigrate rewrite does it); ")
    assert "  Examples (ascend):" in told.lines
    assert told.lines[-1] == "  Silence one site with: `# joymigrate: ignore[JM130] reason`"


def test_to_shows_another_chip(joy: Joy) -> None:
    shown = {chip: joy("explain", "JM130", "--to", chip).out for chip in ("ascend", "cambricon")}
    assert '"hccl"' in shown["ascend"].split("Examples")[1]
    assert '"cncl"' in shown["cambricon"].split("Examples")[1]


def test_json_has_the_contract(joy: Joy) -> None:
    document = json.loads(joy("explain", "JM101", "--format", "json").out)
    assert document["schema"] == "joymigrate.rule/1"
    assert document["rule"] == "JM101"
    assert {"file", "style", "before", "after", "keep", "unsafe"} == set(document["examples"][0])
    several = json.loads(joy("explain", "JM101", "JM130", "--format", "json").out)
    assert [one["rule"] for one in several["rules"]] == ["JM101", "JM130"]


def test_any_name_is_explained_line_by_line(joy: Joy) -> None:
    told = joy("explain", "torch.cuda.mem_get_info", "aten::lgamma", "JM130")
    assert (told.code, told.err) == (0, "")
    heads = [line for line in told.lines[2:] if line and not line.startswith(" ")]
    assert heads == [
        "torch.cuda.mem_get_info: an API:",
        "aten::lgamma: an operator:",
        "JM130: a rule:",
    ]
    direct = told.lines[4]
    assert direct.startswith("  ascend [direct]: torch.npu.mem_get_info; safe; torch-npu 2.2 and")
    assert "[JM101] (documented: torch-npu " in direct


def test_names_have_the_contract(joy: Joy) -> None:
    document = json.loads(joy("explain", "flash_attn", "JM130", "--format", "json").out)
    assert document["schema"] == "joymigrate.names/1"
    assert [one["kind"] for one in document["names"]] == ["package", "import", "rule"]
    for one in document["names"]:
        assert all(said["grade"] == "documented" for said in one["statements"])
    assert document["grades"]["measured"] == 0


def test_names_are_told_in_chinese_and_in_markdown(joy: Joy) -> None:
    assert "aten::lgamma：算子" in joy("explain", "aten::lgamma", "--lang", "zh").out
    told = joy("explain", "aten::lgamma", "--format", "md")
    assert "## aten::lgamma: an operator" in told.lines


def test_list_names_every_rule(joy: Joy) -> None:
    told = joy("explain", "--list")
    rows = json.loads(joy("explain", "--list", "--format", "json").out)["rules"]
    assert told.code == 0
    assert [line.split()[0] for line in told.lines if line.startswith("  JM")] == [
        row["rule"] for row in rows
    ]
    assert "| Rule |  | Tier |" in joy("explain", "--list", "--format", "md").out


def test_labels_are_chinese_on_request(joy: Joy) -> None:
    assert (
        "级别：safe（joymigrate rewrite 自动改写）" in joy("explain", "JM101", "--lang", "zh").out
    )


def test_markdown_goes_to_a_file(joy: Joy) -> None:
    told = joy("explain", "JM101", "--format", "md", "-o", "rule.md")
    assert (told.code, told.out) == (0, "")
    assert Path("rule.md").read_text().startswith("# Rules for Huawei")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain",), "no name to explain"),
        (("explain", "torch.cuda.mem_get_inf"), "Did you mean 'torch.cuda.mem_get_info'?"),
        (("explain", "JM101", "qqqqqqqq"), "unknown name 'qqqqqqqq'"),
        (("explain", "JM9"), "unknown rule 'JM9'. Did you mean 'JM"),
        (("explain", "JM101", "--to", "asend"), "Did you mean 'ascend'?"),
        (("explain", "JM101", "--format", "sarif"), "--format does not know 'sarif'"),
    ],
)
def test_a_mistake_is_one_clear_error(joy: Joy, arguments: tuple[str, ...], message: str) -> None:
    told = joy(*arguments)
    assert (told.code, told.out) == (2, "")
    assert message in told.err
