"""Dumps of msprobe as a side: one made by mindstudio-probe 26.2.0 of a two-layer network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.errors import JoyError
from joymigrate.verify.model import Outcome, RecordStatus, Verdict
from joymigrate.verify.msprobe import compare, is_dump, read_dump
from joymigrate.verify.tolerance import Tolerance

DUMP = Path(__file__).parent / "data" / "msprobe" / "dump.json"


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    raw = json.loads(DUMP.read_bytes())
    change(raw["data"])
    folder.mkdir(exist_ok=True)
    path = folder / "dump.json"
    path.write_text(json.dumps(raw))
    return path


def judged(target: Path) -> Verdict:
    return compare(DUMP, target, Tolerance.of("ascend"))


def test_modules_calls_and_gradients_are_read() -> None:
    side = read_dump(DUMP)
    assert is_dump(DUMP)
    record = side.records["up", 0, "in", "0"]
    assert (record.dtype, record.shape) == ("float32", (5, 8))
    assert record.stats[3] == pytest.approx(6.05288, abs=1e-4)
    assert {kind for _, _, kind, _ in side.records} == {"in", "out", "param", "gout", "gin", "grad"}
    assert ("up", 0, "grad", "weight") in side.records


def test_a_dump_against_itself_passes() -> None:
    found = judged(DUMP)
    assert found.verdict is Outcome.PASS
    assert {r.status for r in found.records} == {RecordStatus.IDENTICAL}


def test_the_first_module_whose_output_is_off_is_named_once(tmp_path: Path) -> None:
    def fault(data: dict[str, Any]) -> None:
        for name in ("act.SiLU", "norm.LayerNorm", "down.Linear"):
            for part in ("output",) if name == "act.SiLU" else ("input_args", "output"):
                for value in data[f"Module.{name}.forward.0"][part]:
                    value["Norm"] *= 1.2
                    value["Max"] *= 1.2

    found = judged(changed(tmp_path, fault))
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert (found.first_divergence.module, found.first_divergence.phase) == ("act", "forward")
    assert sum(r.status.failed for r in found.records) == 1
    assert {r.consequence_of for r in found.records if r.consequence_of} == {"act"}


def test_a_gradient_alone_is_named_as_backward(tmp_path: Path) -> None:
    def fault(data: dict[str, Any]) -> None:
        data["Module.norm.LayerNorm.backward.0"]["output"][0]["Norm"] *= 1.5

    found = judged(changed(tmp_path, fault)).first_divergence
    assert found is not None
    assert (found.module, found.phase) == ("norm", "backward")


def test_a_module_that_the_target_lacks_never_passes(tmp_path: Path) -> None:
    def gone(data: dict[str, Any]) -> None:
        del data["Module.act.SiLU.forward.0"]

    found = judged(changed(tmp_path, gone))
    assert found.verdict is Outcome.INCONCLUSIVE
    assert "act" in found.coverage.uncompared


def test_small_noise_passes_and_nan_on_one_side_does_not(tmp_path: Path) -> None:
    def noise(data: dict[str, Any]) -> None:
        data["Module.up.Linear.forward.0"]["output"][0]["Norm"] *= 1 + 1e-6

    def nan(data: dict[str, Any]) -> None:
        data["Module.up.Linear.forward.0"]["output"][0]["Max"] = "nan"

    assert judged(changed(tmp_path / "a", noise)).verdict is Outcome.PASS
    found = judged(changed(tmp_path / "b", nan))
    assert found.verdict is Outcome.FAIL
    assert RecordStatus.NAN_MISMATCH in {r.status for r in found.records}


def test_kept_tensors_are_compared_by_value_where_statistics_are_blind(tmp_path: Path) -> None:
    sides = []
    values = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    for name, kept in (("a", values), ("b", values[::-1])):  # rows in another order

        def kept_too(data: dict[str, Any]) -> None:
            data["Module.act.SiLU.forward.0"]["output"][0]["data_name"] = "act.npy"

        path = changed(tmp_path / name, kept_too)
        (path.parent / "dump_tensor_data").mkdir()
        np.save(path.parent / "dump_tensor_data" / "act.npy", kept)
        sides.append(path)
    found = compare(sides[0], sides[1], Tolerance.of(None)).first_divergence
    assert found is not None
    assert (found.module, found.metric) == ("act", "relative L2 error")


def test_a_pickle_is_not_executed(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "ran").touch, ())

    def kept(data: dict[str, Any]) -> None:
        data["Module.act.SiLU.forward.0"]["output"][0]["data_name"] = "act.pt"

    path = changed(tmp_path, kept)
    (tmp_path / "dump_tensor_data").mkdir()
    (tmp_path / "dump_tensor_data" / "act.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(JoyError, match="cannot read the tensor"):
        compare(path, path, Tolerance.of(None))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"task": 1}', '{"data": {}}', '{"data": 3}'])
def test_what_is_no_dump_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    with pytest.raises(JoyError, match="dump"):
        read_dump(path)


def test_steps_are_found_below_a_folder(tmp_path: Path) -> None:
    for step in (0, 3):
        folder = tmp_path / f"step{step}" / "rank0"
        folder.mkdir(parents=True)
        (folder / "dump.json").write_bytes(DUMP.read_bytes())
    assert "step3" in read_dump(tmp_path, 3).name
    with pytest.raises(JoyError, match="there is 0, 3"):
        read_dump(tmp_path, 1)
