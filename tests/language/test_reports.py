"""Chinese reports: what has a translation is said in it, columns meet, one is a snapshot."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path

import pytest

from joymigrate.cli._main import run
from joymigrate.language import Language, Text, catalogue, restore_texts, speaking, width
from joymigrate.report import rehearsal_document, renderers, verdict_text
from joymigrate.report.verdict import describe
from joymigrate.report.verdict_words import content
from joymigrate.run.rehearse.summary import as_text
from joymigrate.verify.task import TaskQuestion, compare
from joymigrate.verify.task.document import document

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SNAPSHOT = Path(__file__).parent / "task_zh.txt"
UPDATE = os.environ.get("JOYMIGRATE_UPDATE_SNAPSHOTS") == "1"
# Four words in a row, the last three in lower case: a sentence, not a name.
SENTENCE = re.compile(r"(?<![\w/.:-])[a-zA-Z][a-z']+(?:[ ,;]+[a-z][a-z']*){3,}")


def english(text: str) -> list[str]:
    """English sentences of a report that have a translation, outside of code and quoted source."""
    text = re.sub(r"<(script|style|code|pre)\b.*?</\1>", "", text, flags=re.S)
    text = re.sub(r"^ *```.*?^ *```", "", html.unescape(text), flags=re.S | re.M)
    text = re.sub(r"`[^`\n]*`|'[^'\n]*'|\"[^\"\n]*\"", "", text)
    known = catalogue("zh")
    return [one for one in SENTENCE.findall(text) if any(one in english for english in known)]


def messages(document: dict[str, object]) -> list[str]:
    """What a SARIF log says."""
    found: list[str] = []

    def walk(data: object, key: str = "") -> None:
        if isinstance(data, dict):
            for name, one in data.items():
                if name not in ("insertedContent", "snippet"):
                    walk(one, name)
        elif isinstance(data, list):
            for one in data:
                walk(one, key)
        elif isinstance(data, str) and key in ("text", "markdown"):
            found.append(data)

    walk(document)
    return found


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="no examples beside the package")
@pytest.mark.parametrize("form", ["text", "md", "github", "sarif", "html", "json"])
def test_a_scan_of_the_examples_says_no_english_sentence(form: str, tmp_path: Path) -> None:
    out = tmp_path / "report"
    arguments = ["scan", str(EXAMPLES / "gpt"), str(EXAMPLES / "ctr"), str(EXAMPLES / "detector")]
    assert run([*arguments, "--lang", "zh", "--exit-zero", "--format", form, "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    if form == "sarif":
        assert english("\n".join(messages(json.loads(text)))) == []
    elif form == "json":
        found = json.loads(text)["findings"]
        assert english("\n".join(f"{one['message']} {one['reason']}" for one in found)) == []
    else:
        assert english(text) == []
        assert "设备" in text


def test_json_of_a_scan_can_be_shown_in_chinese_later(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("flash-attn==2.5\n", encoding="utf-8")
    scan, shown = tmp_path / "scan.json", tmp_path / "shown.md"
    run(["scan", str(project), "--exit-zero", "--format", "json", "-o", str(scan)])
    assert "use flash" in json.loads(scan.read_text(encoding="utf-8"))["findings"][0]["reason"]
    run(["report", str(scan), "--format", "md", "--lang", "zh", "-o", str(shown)])
    assert english(shown.read_text(encoding="utf-8")) == []


def test_a_rule_is_explained_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "JM121", "--lang", "zh"]) == 0
    said = capsys.readouterr().out
    assert "跟踪范围包括赋值、默认参数" in said
    assert english(re.sub(r"^ {4}.*$", "", said, flags=re.M)) == []


def test_the_language_comes_from_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "joymigrate.toml").write_text('lang = "zh"\n', encoding="utf-8")
    (tmp_path / "train.py").write_text("x.cuda()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    run(["scan", ".", "--exit-zero"])
    assert "共发现" in capsys.readouterr().out
    run(["scan", ".", "--exit-zero", "--lang", "en"])
    assert "Found 1 site" in capsys.readouterr().out


def test_an_unknown_language_of_the_configuration_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "joymigrate.toml").write_text('lang = "cn"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(["explain", "JM101"]) == 2
    assert "joymigrate.toml" in capsys.readouterr().err


def test_columns_of_the_readiness_table_meet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = 'import torch\nx.cuda()\ntorch.distributed.init_process_group("nccl")\n'
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    run(["scan", str(tmp_path), "--exit-zero", "--lang", "zh"])
    lines = capsys.readouterr().err.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  领域"))
    ends = [width(line[: line.rindex("   ")]) for line in lines[start : start + 3]]
    assert len(set(ends)) == 1


REHEARSAL = {
    "soc": "Ascend910B3", "devices": 1, "package": {"torch_npu": "2.13.0"}, "mode": "run",
    "memory_bytes": 1 << 36, "precision": "fp32", "exit_code": 0, "processes": 1,
    "operators": 2, "calls": 5, "peak_memory_bytes": {"npu:0": 1 << 20},
    "checked_by": {"vendor_cpp": 1.0, "reference": 0.0, "cpu_alias": 0.0},
    "fallbacks": [{"op": "aten::lgamma", "calls": 1, "where": ["train.py:3"]}],
    "unsimulated": [], "triton_kernels": [], "kernels": {"aclnnAdd": 1},
    "documented": [{"where": "train.py:4", "kernel": "aclnnAdd", "dtype": "BFLOAT16",
                    "op": "aten::add",
                    "source": "Atlas training series has no BFLOAT16 (kernel documents)"}],
    "refusals": [
        {"where": "train.py:4", "op": "aten::add", "kernel": "aclnnAdd", "dtype": "BFLOAT16",
         "message": "float64 becomes float32 on the device", "calls": 2, "grade": "documented",
         "source": "Atlas training series has no BFLOAT16 (kernel documents)"},
        {"where": "train.py:6", "op": "aten::mul", "kernel": "aclnnMul", "dtype": "",
         "message": "float64 becomes float32 on the device", "calls": 1, "grade": "documented",
         "source": ""},
    ],
    "ordered": {"accesses": 9, "copies": 1, "collectives": 1, "streams": 2},
    "races": [{"race": "order", "where": "train.py:9", "op": "aten::add", "count": 1,
               "message": "torch.npu has no nvtx, which torch.cuda has",
               "first_where": "train.py:8", "first_op": "aten::mul",
               "remedy": "torch.npu.mstx marks ranges on this chip"}],
    "judged": {"calls": 5, "dtypes": 3, "relations": 1, "rank": 2, "shapes": 0, "attributes": 0,
               "formats": 1, "nobody": 2},
    "slow_kernels": [{"where": "train.py:7", "op": "aten::sort", "calls": 1, "aicpu": ["Sort"],
                      "source": "ops-math 9.1.0"}],
    "differences": [], "measured": [],
    "grades": {"documented": 2, "rehearsed": 1, "measured": 0},
    "ranks": [{"rank": 0, "pid": 7, "command": ["train.py"], "calls": 5, "fallback_calls": 1,
               "peak_memory_bytes": {"npu:0": 1 << 20}, "finished": True,
               "timeline": [[0.0, 0], [1.0, 1 << 20]]}],
    "traps": [
        {"trap": "float64", "where": "train.py:2", "count": 1,
         "message": "float64 becomes float32 on the device",
         "remedy": "use float32 and compare with tolerances, or keep the tensor on the CPU"},
        {"trap": "missing_attribute", "where": "train.py:5", "count": 1,
         "message": "torch.npu has no nvtx, which torch.cuda has",
         "remedy": "torch.npu.mstx marks ranges on this chip"},
    ],
    "texts": {"torch.npu has no nvtx, which torch.cuda has": {
        "template": "torch.npu has no {name}, which torch.cuda has", "fields": {"name": "nvtx"}}},
}  # fmt: skip


def test_a_rehearsal_says_no_english_sentence() -> None:
    with speaking(Language("zh", REHEARSAL["texts"])):  # type: ignore[arg-type]
        text = as_text(REHEARSAL)
        made = renderers.render(rehearsal_document.describe(REHEARSAL), "html")
    assert english(text) == []
    assert english(made) == []
    assert "torch.npu 没有 nvtx，而 torch.cuda 有" in text
    assert '<html lang="zh-CN">' in made


def test_a_record_that_went_through_json_keeps_its_texts() -> None:
    back = restore_texts({**REHEARSAL})
    assert Language("zh")(back["traps"][1]["message"]) == "torch.npu 没有 nvtx，而 torch.cuda 有"


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Predictions of which the target's are worse."""
    folder = tmp_path_factory.mktemp("task")
    for name, wrong in (("a", 10), ("b", 4)):
        lines = [
            json.dumps({"id": str(i), "prediction": "x" if i % wrong else "y", "reference": "x"})
            for i in range(400)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    question = TaskQuestion(0.5, None, (), (), 0.05, 0.8, None, False, "error", 2, 0.9)
    return dict(document(compare(folder / "a.jsonl", folder / "b.jsonl", question, None)))


def test_a_verdict_says_no_english_sentence(verdict: dict[str, object]) -> None:
    with speaking(Language("zh")):
        pages = [verdict_text.render(verdict)]
        pages += [renderers.render(describe(verdict), form) for form in ("md", "html")]
    for one in pages:
        assert english(one) == []
        assert "未通过" in one


def test_a_verdict_outside_of_a_language_is_english(verdict: dict[str, object]) -> None:
    assert verdict_text.render(verdict).startswith("FAIL at S8 (task)")


def test_the_text_of_a_verdict_is_as_it_was(verdict: dict[str, object]) -> None:
    with speaking(Language("zh")):
        text = verdict_text.render(verdict)
    if UPDATE:
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("grad 0.weight", "0.weight 的梯度"),
        ("gout", "输出梯度"),
        ("in 1", "输入 1"),
        ("state w.exp_avg", "优化器状态 w.exp_avg"),
        ("aten::mm", "算子 aten::mm"),
        (Text("input {leaf} of {short}", leaf=0, short="top"), "top 的输入 0"),
    ],
)
def test_what_a_record_holds_is_said_in_chinese(op: str, said: str) -> None:
    with speaking(Language("zh")):
        assert content(op) == said
    assert content(op) == f"operator {op}"
