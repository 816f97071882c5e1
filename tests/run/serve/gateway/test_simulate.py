"""Operating characteristics of the real state machine, and the calendar of a ramp."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import RolloutPlan
from joymigrate.run.serve.evidence.rule import EProcess
from joymigrate.run.serve.gateway import simulate, streams
from joymigrate.run.serve.gateway.streams import UpstreamOutcome

PLAN = RolloutPlan(min_step_seconds=0)
RUNS = 2000


@pytest.mark.dear
@pytest.mark.parametrize(
    ("rate", "allowed"),
    [
        (0.0002, 0.01),
        pytest.param(0.0005, 0.05, marks=pytest.mark.slow),
    ],
)
def test_a_healthy_standby_is_hardly_ever_rolled_back(rate: float, allowed: float) -> None:
    seen = simulate.characterise("eprocess", PLAN, EProcess, rate=rate, runs=RUNS, horizon=100_000)
    assert seen.share <= allowed


@pytest.mark.dear
@pytest.mark.parametrize(
    ("rate", "within"),
    [
        (1.0, 10),
        pytest.param(0.1, 200, marks=pytest.mark.slow),  # between the two others
        (0.01, 2500),
        pytest.param(0.005, 7000, marks=pytest.mark.slow),
        pytest.param(0.002, 75_000, marks=pytest.mark.slow),
    ],
)
def test_a_failing_standby_is_rolled_back_in_time(rate: float, within: int) -> None:
    seen = simulate.characterise("eprocess", PLAN, EProcess, rate=rate, runs=400, horizon=1_000_000)
    delay = seen.quantile(0.99)
    assert delay is not None
    assert delay <= within


def test_a_synthetic_stream_has_its_rate() -> None:
    stream = streams.bernoulli(0.01, random.Random(1))
    failures = requests = 0
    for outcome in islice(stream, 20_000):
        requests += outcome.count
        failures += bool(outcome.failure)
    # 10,000 failures: three standard deviations are 3 %.
    assert failures / requests == pytest.approx(0.01, rel=0.03)


def test_a_ramp_of_30000_requests_a_day_needs_eleven_days_of_proof_at_one_percent() -> None:
    found = simulate.calendar(RolloutPlan(), EProcess, requests_per_s=30_000 / 86_400, runs=5)
    assert found.steps[0].proof_seconds / 86_400 == pytest.approx(10.97, abs=0.01)
    assert found.promoted is not None


def test_shadow_requests_shorten_the_proof_to_hours() -> None:
    found = simulate.calendar(
        RolloutPlan(), EProcess, requests_per_s=30_000 / 86_400, shadow=20, runs=5
    )
    assert found.steps[0].proof_seconds / 3600 < 13


def test_a_recorded_stream_says_when_it_would_have_rolled_back(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    lines = [f'{{"time": {i}, "upstream": "npu", "failure": null}}' for i in range(100)]
    lines += [f'{{"time": {i}, "upstream": "npu", "failure": "odd"}}' for i in range(100, 120)]
    lines += ['{"time": 1, "upstream": "gpu", "failure": null}']
    path.write_text("\n".join(lines))
    record = streams.read(path, "npu")
    found = simulate.replay("eprocess", PLAN, EProcess, record)
    assert (found.requests, found.failures) == (120, 20)
    assert (found.rolled_back_at, found.time) == (103, 102.0)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.jsonl", '{"time": 1}'), ("a.jsonl", "{"), ("a.txt", "0102"), ("a.csv", "time\n1\n")],
)
def test_a_broken_record_is_one_clear_error(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(JoyError):
        streams.read(path)


def test_a_text_of_zeros_and_ones_is_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("0010\n")
    assert [bool(outcome.failure) for outcome in streams.read(path)] == [False, False, True, False]


def test_resampling_keeps_bursts_together() -> None:
    record = [UpstreamOutcome(None)] * 990 + [UpstreamOutcome("reset")] * 10
    seen = simulate.characterise("eprocess", PLAN, EProcess, record=record, runs=20, block=1000)
    assert seen.share == 1.0


def test_runs_of_successes_do_not_change_a_delay() -> None:
    def single(stream: list[UpstreamOutcome]) -> list[UpstreamOutcome]:
        return [UpstreamOutcome(o.failure) for o in stream for _ in range(o.count)]

    rng = random.Random(3)
    for _ in range(10):
        stream = list(islice(streams.bernoulli(0.005, rng), 60))
        whole = simulate.until_rollback(simulate.start_ramp(PLAN, EProcess), stream, 10**6, 100)
        one = simulate.until_rollback(
            simulate.start_ramp(PLAN, EProcess), single(stream), 10**6, 100
        )
        assert whole == one
