"""The record of a process: the last one written stays."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.rehearse import record as module
from joymigrate.run.rehearse.record import RehearsalRecord


def test_a_save_that_began_before_the_last_one_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RehearsalRecord(tmp_path)
    began = threading.Event()

    def slowly(raw: Any) -> Any:
        seen = json.loads(json.dumps(raw))
        if threading.current_thread() is not threading.main_thread():
            began.set()
            threading.Event().wait(0.3)
        return seen

    monkeypatch.setattr(module, "with_texts", slowly)
    thread = threading.Thread(target=record.save)
    thread.start()
    assert began.wait(10)
    record.fallback("aten::x", "model.py:1")
    record.save(finished=True)
    thread.join()
    record.save()  # the watching thread, once more
    written = json.loads((tmp_path / f"process-{record.pid}.json").read_text())
    assert written["finished"] is True
    assert written["fallbacks"] == {"aten::x": {"model.py:1": 1}}


def test_a_save_beside_a_program_that_counts_on_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(raw: Any) -> Any:
        raise RuntimeError("dictionary changed size during iteration")

    record = RehearsalRecord(tmp_path)
    monkeypatch.setattr(module, "with_texts", changing)
    record.save()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError):
        record.save(finished=True)


@pytest.mark.slow
def test_a_forked_child_of_multiprocessing_leaves_its_record(rehearse, tmp_path: Path) -> None:
    program = tmp_path / "forked.py"
    program.write_text(
        "import multiprocessing, torch, torch_npu\n"
        "def work():\n"
        "    torch.lgamma(torch.ones(3, device='npu:0'))\n"
        "child = multiprocessing.get_context('fork').Process(target=work)\n"
        "child.start()\n"
        "child.join()\n"
        "for _ in range(9):\n"
        "    torch.ones(3).npu() + 1\n"
        "worker = multiprocessing.get_context('fork').Process(target=print)\n"
        "worker.start()\n"
        "worker.join()\n"
    )
    done = rehearse("python", str(program))
    assert done.code == 0, done.err
    assert [row["op"] for row in done.report["fallbacks"]] == ["aten::lgamma.out"]
    assert all(rank["finished"] for rank in done.report["ranks"])
    told = done.report["arguments_judged"]  # of each call once: the child's are its own
    assert told["nobody"] == told["calls"] - sum(told["by"].values()) >= 0


def test_a_refusal_is_on_disk_before_the_process_can_be_killed(tmp_path: Path) -> None:
    record = RehearsalRecord(tmp_path)
    record.refuse("aten::expm1", "aclnnExpm1", "no float64")
    written = json.loads((tmp_path / f"process-{record.pid}.json").read_text())
    assert [row["calls"] for row in written["refusals"].values()] == [1]
    assert written["finished"] is False


def test_lines_of_a_program_that_is_no_file_have_their_number() -> None:
    source = "\nfrom joymigrate.run.rehearse.callsite import call_site\n\nplace = call_site()\n"
    names: dict[str, Any] = {"__name__": "__main__"}
    # A thread of its own, so that no frame of this file is below it.
    done = threading.Thread(target=exec, args=(compile(source, "<string>", "exec"), names))
    done.start()
    done.join()
    assert names["place"] == "<string>:4"


@pytest.mark.slow
@pytest.mark.compiler
def test_what_ends_at_once_still_counts(rehearse, tmp_path: Path) -> None:
    refused = "import torch, torch_npu\ntorch.ones(2, device='npu', dtype=torch.float64).expm1()\n"
    program = tmp_path / "ends.py"
    program.write_text(
        "import multiprocessing, subprocess, sys\n\n\ndef child():\n"
        f"    exec({refused!r})\n\n\nif __name__ == '__main__':\n"
        "    fork = multiprocessing.get_context('fork').Process(target=child)\n"
        "    fork.start(), fork.join()\n"
        f"    subprocess.run([sys.executable, '-c', {refused + 'import os; os._exit(0)'!r}])\n"
        "    idle = 'import os, torch_npu; os._exit(0)'\n"
        "    subprocess.run([sys.executable, '-c', idle])\n"
        "    kill = 'import os; os.kill(os.getpid(), 9)'\n"
        f"    subprocess.run([sys.executable, '-c', {refused!r} + kill])\n"
    )
    done = rehearse("python", program.name)
    (row,) = done.report["refusals"]
    assert row["calls"] == 3
    assert "1 process ended without a last word" in done.err
    assert (done.code, done.report["exit_code"]) == (0, 0)
    strict = rehearse("python", program.name, options=("--strict",))
    assert (strict.code, strict.report["exit_code"]) == (1, 0)
