"""What two runs of the original make otherwise is no fault of a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joymigrate.verify.bundle import Rank
from joymigrate.verify.repeats import find_unrepeated

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
        "forced.json": {
            "lessons": [
                {"root": "net", "path": "", "number": 0, "scalars": {"#0": {"1": number, "2": 3}}}
            ]
        },
        "watch.json": {"series": {"input net: 0 0": [[0, 1.0, 2.0]],
                                  "input net: 1 0": [[0, number, 2.0]]}},
        "printed.json": {"lines": ["loss 0.25 of 7", f"loss 0.125 of {7 + int(number)}"]},
    }  # fmt: skip
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return Rank(folder, {"files": dict.fromkeys(files)})


def test_values_of_the_clock_are_told_from_those_that_a_run_repeats(tmp_path: Path) -> None:
    one = rank(tmp_path / "one", {}, 12.25, 7.5)
    two = rank(tmp_path / "two", {"a": "rounded", "c": "later", "d": "later"}, 14.5, 9.0)
    key = repr(("loss", 0, 0, ""))
    assert find_unrepeated(one, two) == {
        "events": {key: {"given": [2, 3], "constants": [1]}},
        "numbers": {repr(("net", "", 0)): ["1"]},
        "inputs": ["input net: 1 0"],
        "printed": [["loss # of #", 1]],
    }
    assert find_unrepeated(one, one) == {"events": {}, "numbers": {}, "inputs": [], "printed": []}
