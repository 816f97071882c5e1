"""What is recorded of a machine, and the lock of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.chips import get
from joymigrate.cli._main import run
from joymigrate.environment import lock as locks
from joymigrate.environment.look import read_smi, sdk
from joymigrate.environment.record import record
from joymigrate.environment.rules import RecordPlaces, SdkPlaces, rules_of

TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B1               | OK            | 94.6        49                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3373 / 65536         |
+===========================+===============+====================================================+
| 1     910B1               | Warning       | 97.8        48                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3367 / 65536         |
+===========================+===============+====================================================+
"""


def test_the_tools_table_is_read() -> None:
    rules = rules_of(get("ascend"))
    assert rules is not None
    assert read_smi(TABLE, rules.record) == {
        "version": "24.1.rc3",
        "cards": [
            {"id": 0, "name": "910B1", "health": "OK"},
            {"id": 1, "name": "910B1", "health": "Warning"},
        ],
    }


def test_an_sdk_that_is_there_and_not_sourced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x86_64-linux").mkdir()
    (tmp_path / "x86_64-linux" / "ascend_toolkit_install.info").write_text(
        "package_name=Ascend-cann-toolkit\nversion=8.3.RC1\n"
    )
    (tmp_path / "opp" / "ascend910b").mkdir(parents=True)
    places = RecordPlaces(
        sdk=SdkPlaces(
            variables=("TOY_HOME",), homes=(str(tmp_path),),
            versions=("*-linux/ascend_toolkit_install.info",), kernels=("opp/ascend*",),
        )
    )  # fmt: skip
    monkeypatch.delenv("TOY_HOME", raising=False)
    found = sdk(places)
    assert (found["version"], found["sourced"], found["kernels"]) == (
        "8.3.RC1", False, ["ascend910b"],
    )  # fmt: skip
    monkeypatch.setenv("TOY_HOME", str(tmp_path / "gone"))
    assert sdk(places)["found"] is False


def test_a_lock_names_what_changed() -> None:
    chip = get("ascend")
    environment = record(chip, trial=False)
    locked = locks.lock(environment, chip)
    assert len(locked["packages"]["numpy"]["sha256"]) == 64
    assert locks.differences(locked, locked) == []
    other = {**environment, "packages": {**environment["packages"], "numpy": "1.0"}}
    said = locks.differences(locked, locks.lock(other, chip))
    assert said == [f"numpy: locked {environment['packages']['numpy']}, here 1.0"]


@pytest.mark.dear
def test_a_machine_is_compared_with_its_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chip.lock.json"
    locked = locks.lock(record(get("ascend"), trial=False), get("ascend"))
    file.write_text(json.dumps(locked))
    assert run(["doctor", "--check-lock", str(file)]) == 0
    assert "as it was locked" in capsys.readouterr().out
    locked["packages"]["numpy"]["version"] = "1.0"
    file.write_text(json.dumps(locked))
    assert run(["doctor", "--check-lock", str(file), "--format", "json"]) == 1
    (line,) = json.loads(capsys.readouterr().out)["differences"]
    assert line.startswith("numpy: locked 1.0, here ")
    file.write_text("{}")
    assert run(["doctor", "--check-lock", str(file)]) == 2
    assert "not a lock" in capsys.readouterr().err
