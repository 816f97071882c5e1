"""What other runs of the original make otherwise is no fault of a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joymigrate.verify import made_files
from joymigrate.verify.bundle import Rank
from joymigrate.verify.repeat_runs import find_unrepeated

LOSS = {"kind": "loss", "step": 0, "number": 0}
EXTERNALS = [("out:net:#0.", "a"), ("other", "b"), ("table", "c"), ("made:tensor", "d")]


def rank(folder: Path, changed: dict[str, str], time: float, number: float) -> Rank:
    """What a process recorded: values that a loss is made of, a model called with a number."""
    folder.mkdir()
    files: dict[str, Any] = {
        "tape.json": {
            "events": [
                LOSS
                | {
                    "externals": [
                        {"role": role, "content": changed.get(content, content)}
                        for role, content in EXTERNALS
                    ],
                    "constants": [0.1, time],
                }
            ]
        },
        "forced.json": {"lessons": [{"root": "net", "path": "", "number": 0}]},
        "program.json": {
            "scalars": {"net:": {"1": number, "2": 3}},
            "weights": {name: {"sha256": changed.get(name, name)} for name in "aw"},
        },
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return Rank(folder, {"files": dict.fromkeys(files)})


def test_values_of_the_clock_are_told_from_those_that_a_run_repeats(tmp_path: Path) -> None:
    one = rank(tmp_path / "one", {}, 12.25, 7.5)
    two = rank(tmp_path / "two", {"a": "rounded", "c": "later", "d": "later"}, 14.5, 9.0)
    key = repr(("loss", 0, 0, ""))
    assert find_unrepeated(one, two) == {
        "events": {key: {"given": [2], "constants": [1]}},
        "numbers": {repr(("net", "", 0)): ["1"]},
        "weights": ["a"],
    }
    assert find_unrepeated(one, one) == {"events": {}, "numbers": {}, "weights": []}


def test_another_run_begins_as_the_first_and_leaves_what_that_made(tmp_path: Path) -> None:
    bundle = tmp_path / "base.jmb"
    bundle.mkdir()
    (tmp_path / "data.txt").write_text("data")
    before = made_files.list_files(tmp_path, bundle)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint.pt").write_text("of the first run")
    (bundle / "manifest.json").write_text("{}")
    with made_files.set_aside(tmp_path, before, bundle):
        assert not (tmp_path / "out" / "checkpoint.pt").exists()  # nothing to resume from
        assert (tmp_path / "data.txt").exists()
        assert (bundle / "manifest.json").exists()
        (tmp_path / "out" / "checkpoint.pt").write_text("of the second")
        (tmp_path / "log.txt").write_text("again")
    assert (tmp_path / "out" / "checkpoint.pt").read_text() == "of the first run"
    assert not (tmp_path / "log.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base.jmb", "data.txt", "out"]
