"""The benchmark's decision, and the file it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels import bench, tuning_results
from joymigrate.run.kernels.operator import Call


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JOYMIGRATE_CACHE", str(tmp_path))
    kernels.forget_choices()
    return tmp_path


def test_the_clearly_faster_one_wins() -> None:
    assert bench.winner({"reference": [2.0] * 5, "a": [1.0] * 5, "b": [1.5] * 5}) == "a"


def test_four_percent_are_not_enough() -> None:
    assert bench.winner({"reference": [1.04] * 5, "a": [1.0] * 5}) == "reference"


def test_one_that_was_slower_in_a_quarter_of_the_rounds_is_not_chosen() -> None:
    assert bench.winner({"reference": [1.0] * 8, "a": [0.5] * 5 + [2.0] * 3}) == "reference"


@given(
    st.lists(st.floats(0.1, 10), min_size=4, max_size=9),
    st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10), min_size=1),
)
def test_the_winner_is_never_slower_than_the_reference(
    reference: list[float], factors: dict[str, float]
) -> None:
    samples = {name: [t * factor for t in reference] for name, factor in factors.items()}
    chosen = bench.winner({"reference": reference, **samples})
    assert chosen == "reference" or factors[chosen] < 1.0


@given(st.lists(st.integers(0, 10**6), max_size=5))
def test_a_bucket_holds_the_shape_and_is_less_than_twice_as_large(shape: list[int]) -> None:
    for size, held in zip(shape, tuning_results.bucket(tuple(shape)), strict=True):
        assert size <= held <= max(1, 2 * size - 1)


def test_tuning_keeps_what_it_measured_and_it_is_chosen(cache: Path) -> None:
    kernel = kernels.op("jagged_to_padded")
    found = [
        *bench.bench([kernel], "cpu", dtypes=["float32"], phases=["infer"], rounds=3, tune=True)
    ]
    (file,) = cache.glob("kernels/cpu-*.json")
    document = json.loads(file.read_text())
    assert document["schema"] == "joymigrate.tuned/1"
    assert len(document["entries"]) == len(found) == 2
    for timing in found:
        assert timing.chosen == timing.fastest
        assert timing.chosen == "reference" or timing.speed_up[timing.chosen] >= bench.CLEARLY
        assert timing.reason.startswith("tuned here")
    assert not [*cache.glob("kernels/.*")]  # nothing half-written is left


def test_measurements_of_another_torch_do_not_count(cache: Path) -> None:
    call = Call("cpu", "cpu", "float32", (4, 4))
    card = tuning_results.card_name("cpu") or ""
    path = tuning_results.path_of("cpu", card)
    tuning_results.store(
        path,
        card,
        {tuning_results.key("rms_norm", call): tuning_results.TunedEntry("reference", 1.0, 1.0)},
    )
    assert tuning_results.lookup("rms_norm", call) is not None
    path.write_text(path.read_text().replace('"torch": "', '"torch": "0.'))
    tuning_results.load.cache_clear()
    assert tuning_results.lookup("rms_norm", call) is None


def entry(**values: object) -> str:
    """A file with one entry, some of whose values are wrong."""
    import torch

    sound = {"implementation": "reference", "us": 1.0, "reference_us": 1.0, "shape": [4]}
    entries = {"rms_norm|cpu|float32|infer||4x4": {**sound, **values}}
    return json.dumps(
        {"schema": "joymigrate.tuned/1", "torch": torch.__version__, "entries": entries}
    )


DAMAGED = {
    "cut": "{", "a list": "[]", "another schema": '{"schema": "x"}', "empty": "",
    "deep": "[" * 100_000, "a word for a time": entry(us="fast"), "no time": entry(us=None),
    "not finite": entry(us=float("nan")), "no name": entry(implementation=None),
    "unknown field": entry(colour="red"), "binary": "\x00\x01",
}  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_file_is_a_warning_and_is_written_anew(cache: Path, text: str) -> None:
    path = tuning_results.path_of("cpu", tuning_results.card_name("cpu") or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    tuning_results.load.cache_clear()
    call = Call("cpu", "cpu", "float32", (4, 4))
    with pytest.warns(UserWarning, match="damaged"):
        assert tuning_results.lookup("rms_norm", call) is None
    tuning_results.load.cache_clear()
    assert tuning_results.lookup("rms_norm", call) is None  # and no warning any more
    path.unlink()
    tuning_results.load.cache_clear()


def test_a_rehearsal_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOYMIGRATE_REHEARSE", "1")
    with pytest.raises(JoyError, match="no times"):
        [*bench.bench([kernels.op("swiglu")], "npu", dtypes=["float32"])]
