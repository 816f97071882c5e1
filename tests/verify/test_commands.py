"""The commands end to end: formats, exit codes, the ledger, and pages that show what matters."""

from __future__ import annotations

import json
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from joymigrate.cli._main import run
from joymigrate.ledger import Ledger


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, wrong in (("base", 0), ("same", 0), ("worse", 120)):
        rows = [
            {"id": i, "prediction": "<b>no</b>" if i < wrong else "yes", "reference": "yes"}
            for i in range(2000)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    for name, factor in (("loss", 1.0), ("drift", 1.05)):
        lines = [{"step": i, "loss": (5 - i / 40) * factor} for i in range(100)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    return tmp_path


def verify(*arguments: str) -> int:
    return run(["verify", *arguments])


def test_exit_codes_tell_pass_fail_and_inconclusive(files: Path) -> None:
    assert verify("task", "base.jsonl", "same.jsonl") == 0
    assert verify("task", "base.jsonl", "worse.jsonl") == 1
    (files / "few.jsonl").write_text('{"id": 0, "prediction": "yes", "reference": "yes"}\n')
    assert verify("task", "few.jsonl", "few.jsonl") == 3
    assert verify("task", "base.jsonl", "absent.jsonl") == 2
    assert verify("task", "base.jsonl", "same.jsonl", "--metric", "exat") == 2
    assert verify("loss", "loss.jsonl", "loss.jsonl") == 0
    assert verify("loss", "loss.jsonl", "drift.jsonl") == 1


@pytest.mark.parametrize("form", ["text", "json", "md", "html"])
def test_every_format_says_the_verdict(
    files: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert verify("task", "base.jsonl", "worse.jsonl", "--format", form) == 1
    shown = capsys.readouterr().out
    assert "FAIL" in shown or json.loads(shown)["verdict"] == "fail"
    assert "worse" in shown


def test_the_page_escapes_what_models_say(files: Path) -> None:
    verify("task", "base.jsonl", "worse.jsonl", "--format", "html", "-o", "page.html")
    page = (files / "page.html").read_text()
    assert "<b>no</b>" not in page
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    assert "<svg" in page


def test_the_loss_page_has_its_two_plots_side_by_side(files: Path) -> None:
    verify("loss", "loss.jsonl", "drift.jsonl", "--format", "html", "-o", "page.html")
    page = (files / "page.html").read_text()
    assert page.count('role="img"') >= 2
    assert "relative difference of the loss" in page


def test_a_named_subject_is_recorded_and_rehearsed_is_marked(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not Ledger.of(files).exists()
    verify("task", "base.jsonl", "same.jsonl")
    assert not Ledger.of(files).exists()  # nobody asked for it
    verify("task", "base.jsonl", "same.jsonl", "--subject", "m", "--checkpoint", "ckpt-7")
    monkeypatch.setenv("JOYMIGRATE_REHEARSE", "1")
    verify("task", "base.jsonl", "same.jsonl", "--subject", "m", "--format", "json", "-o", "v.json")
    steps = Ledger.of(files).steps()
    assert [(s.stage, s.grade, s.chip) for s in steps] == [
        ("S8", "documented", "ascend"),
        ("S8", "rehearsed", "ascend"),
    ]
    assert steps[0].details["checkpoint"] == "ckpt-7"
    assert json.loads((files / "v.json").read_text())["rehearsal"] is True


@pytest.mark.dear
def test_operators_are_replayed_from_the_command_line(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensor = {"dtype": "float32", "shape": [8, 16], "requires_grad": True}
    lines = [
        {"schema": "joymigrate.trace/1"},
        {"kind": "op", "op": "aten::gelu", "overload": "", "args": [tensor], "module": "mlp.act"},
    ]
    (files / "t.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    plain = ("ops", "--from", "t.jsonl", "--device", "cpu", "--no-edges", "--format", "json")
    assert verify(*plain) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["stage"], document["target"]["chip"]) == ("S2", "cpu")
    assert {row["phase"] for row in document["operators"]["rows"]} == {"forward", "backward"}
    assert verify(*plain, "--inject", "gelu=1e-2") == 1
    first = json.loads(capsys.readouterr().out)["first_divergence"]
    assert (first["module"], first["op"], first["phase"]) == ("mlp.act", "aten::gelu", "forward")
    assert verify("ops", "--from", "absent.jsonl", "--device", "cpu") == 2
    assert verify("ops", "--from", "t.jsonl", "--device", "cpu", "--level", "L9") == 2
    assert verify("ops", "--from", "t.jsonl", "--device", "tpu") == 2


def test_a_dump_of_msprobe_is_a_side_of_compare(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = Path(__file__).parent / "data" / "msprobe" / "dump.json"
    (files / "dump.json").write_text(dump.read_text().replace("2.5536", "7.5536"))
    assert verify("compare", str(dump), str(dump)) == 0
    capsys.readouterr()
    assert verify("compare", str(dump), "dump.json", "--format", "json") == 1
    first = json.loads(capsys.readouterr().out)["first_divergence"]
    assert (first["module"], first["phase"]) == ("norm", "forward")


@pytest.mark.dear
@pytest.mark.compiler
def test_a_fault_on_the_simulated_chip_is_found(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("joymigrate.run.rehearse")

    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    tensor = {"dtype": "float32", "shape": [8, 16]}
    lines = [
        {"schema": "joymigrate.trace/1"},
        {"kind": "op", "op": "aten::gelu", "overload": "", "args": [tensor]},
        {"kind": "op", "op": "aten::tanh", "overload": "", "args": [tensor]},
    ]
    (files / "t.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    ops = ("ops", "--from", "t.jsonl", "--rehearse", "--inject", "gelu=1e-2", "--no-edges")
    assert verify(*ops, "--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["rehearsal"] is True
    rows = [row for row in document["operators"]["rows"] if row["phase"] == "forward"]
    status = {row["op"]: row["status"] for row in rows}
    assert status["aten::gelu"] == "FAIL"
    assert status["aten::tanh"] in ("PASS", "IDENTICAL")
