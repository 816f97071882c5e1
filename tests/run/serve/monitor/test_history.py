"""What is kept, for how long, and how it is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor.history import FINE_SECONDS, History

HOUR = 3600.0


def test_readings_come_back_in_order(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite")
    for second in range(10):
        history.add(1000.0 + second, {"a": float(second), "b|npu": 1.0})
    found = history.read(1000.0, 1010.0)
    assert found["a"] == [[1000.0 + s, float(s)] for s in range(10)]
    assert len(found["b|npu"]) == 10


def test_old_readings_become_minutes_and_then_nothing(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite", retention_days=1)
    now = 1_700_000_000.0
    for second in range(0, 600, 2):
        history.add(now - 5 * HOUR + second, {"a": float(second)})
        history.add(now - 60 + second / 10, {"a": 1.0})
    history.compact(now)
    old = history.read(now - 6 * HOUR, now - FINE_SECONDS, points=10_000)["a"]
    assert 10 <= len(old) <= 11, "ten minutes"
    assert old[5][1] == pytest.approx(5 * 60 + 29, abs=60)
    assert len(history.read(now - 100, now, points=10_000)["a"]) == 300
    history.compact(now + 25 * HOUR)
    assert history.read(0, now + 26 * HOUR) == {}


def test_a_long_window_is_read_in_few_points(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite")
    for second in range(3000):
        history.add(1000.0 + second, {"a": 1.0})
    assert len(history.read(1000.0, 4000.0, points=100)["a"]) <= 101


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    history = History(path)
    history.add(1.0, {"a": 2.0})
    history.event(1.0, "step", "5 %")
    history.note("x", [1])
    history.close()
    again = History(path)
    assert again.read(0.0, 2.0) == {"a": [[1.0, 2.0]]}
    assert again.events() == [{"time": 1.0, "kind": "step", "text": "5 %"}]
    assert again.noted("x") == [1]
    again.add(1.5, {"a": 3.0})
    assert len(again.read(0.0, 2.0)["a"]) == 2


def test_a_file_that_is_no_history_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    path.write_text("no database" * 1000)
    with pytest.raises(JoyError, match="cannot use the history"):
        History(path)
