"""The record of a process: the last one written stays."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.rehearse import record as module
from joymigrate.run.rehearse.record import Record


def test_a_save_that_began_before_the_last_one_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(tmp_path)
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

    record = Record(tmp_path)
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
