"""Samples of one prompt count as one cluster: tests by simulation and by closed form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from joymigrate.verify.model import Outcome
from joymigrate.verify.task import judge as judging
from joymigrate.verify.task.clusters import score_p, sign_flip
from joymigrate.verify.task.compare import TaskQuestion, compare
from joymigrate.verify.task.figures import Paired, TaskView
from joymigrate.verify.task.judge import AcceptanceRule

RUNS = 200  # a share of 0.05 has a standard error of 0.015


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_one_prompt_and_answers_that_are_all_alike_show_nothing_by_themselves() -> None:
    def judged(prompts: int, copies: int, value: float = 1.0) -> judging.Judgement:
        figures = TaskView()
        for number in range(prompts * copies):
            for view in (figures.paired, figures.worst):
                view.add(value, value, str(number % prompts))
        return judging.judge(figures, AcceptanceRule(0.05), "exact")

    one = judged(1, 500)
    assert one.outcome is Outcome.INCONCLUSIVE
    assert any("of one prompt" in reason for reason in one.reasons)
    assert one.required_n is None
    few, many = judged(20, 10), judged(200, 10)
    assert (few.outcome, many.outcome) == (Outcome.INCONCLUSIVE, Outcome.PASS)
    assert few.required_clusters is not None
    assert few.required_clusters > 20
    assert judged(200, 10, value=0.0).outcome is Outcome.INCONCLUSIVE


@pytest.mark.slow
def test_the_number_of_prompts_that_is_needed_has_the_power_that_was_asked() -> None:
    """Equally good sides, prompts of 1 to 16 samples: the number is taken from a pilot of 100."""
    random = np.random.default_rng(5)

    def judged(prompts: int) -> judging.Judgement:
        figures = TaskView()
        for number in range(prompts):
            share = random.beta(1, 1)
            for _ in range(random.choice([1, 2, 4, 8, 16])):
                pair = [float(random.random() < share) for _ in range(2)]
                for view in (figures.paired, figures.worst):
                    view.add(pair[0], pair[1], str(number))
        return judging.judge(figures, AcceptanceRule(0.05), "exact")

    pilots = sorted(judged(100).required_clusters or 0 for _ in range(5))
    passed = sum(judged(pilots[2]).outcome is Outcome.PASS for _ in range(100))
    assert passed >= 70  # 80 are asked; a standard error is 4


@pytest.mark.dear
def test_a_hundred_copies_of_a_hundred_prompts_are_a_hundred_samples(tmp_path: Path) -> None:
    right = {"reference": "a", "prediction": "a"}
    base = [{"id": p, **right} for p in range(100) for _ in range(100)]
    target = [
        {"id": p, "reference": "a", "prediction": "b" if p < 4 else "a"}
        for p in range(100)
        for _ in range(100)
    ]
    found = compare(
        write(tmp_path / "a.jsonl", base),
        write(tmp_path / "b.jsonl", target),
        TaskQuestion(duplicates="number", margin=5.0),
    )
    made = found.judgement
    assert made.clusters == 100
    assert made.p_different == 0.125  # four heads in a row, either way
    assert made.p_worse == pytest.approx(0.323, abs=1e-3)  # Tango's for 4 of 100 lost
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "about 163 prompts" in str(found.reasons)
    assert made.agreement is not None
    assert made.agreement.low == pytest.approx(0.9016, abs=1e-3)  # Wilson's for 96 of 100


def test_the_key_cluster_joins_samples_of_several_ids(tmp_path: Path) -> None:
    lines = [{"id": i, "cluster": i // 10, "score": 1.0} for i in range(200)]
    worse = [{**line, "score": 0.0 if line["cluster"] == 3 else 1.0} for line in lines]
    found = compare(write(tmp_path / "a", lines), write(tmp_path / "b", worse), TaskQuestion())
    assert (found.judgement.clusters, found.judgement.p_different) == (20, 1.0)


def test_the_score_test_is_tangos_for_right_and_wrong() -> None:
    from joymigrate import stats

    for lost, gained, n, margin in ((0, 0, 60, 0.05), (3, 1, 200, 0.04), (10, 12, 300, 0.02)):
        values = {-1 + margin: lost, 1 + margin: gained, margin: n - lost - gained}
        wanted = 1 - stats.NORMAL.cdf(stats.tango_z(gained, lost, n, -margin))
        assert score_p(values, -1 + margin) == pytest.approx(wanted, abs=2e-3)


def test_the_sign_flip_of_many_agrees_with_that_of_few() -> None:
    rng = np.random.default_rng(3)
    for n in (16, 17, 200, 201):
        values = rng.normal(0.15, 1.0, n).tolist()
        z = abs(sum(values)) / np.sqrt(sum(v * v for v in values))
        from joymigrate.stats import NORMAL

        assert sign_flip(values) == pytest.approx(2 * (1 - NORMAL.cdf(z)), abs=0.03)


def passed(
    prompts: int, copies: int, margin: float, worse: bool, averaged: bool, seed: int
) -> float:
    """Share of simulated runs that pass; `worse`: by the margin, in a few prompts wholly."""
    rng = np.random.default_rng(seed)
    count = 0
    for _ in range(RUNS):
        p = rng.beta(2, 1, prompts)  # mean 2/3
        hit = rng.random(prompts) < margin / (2 / 3)
        q = np.where(hit, 0, p) if worse else p
        a = rng.random((prompts, copies)) < p[:, None]
        b = rng.random((prompts, copies)) < q[:, None]
        found = TaskView(paired=Paired())
        for i in range(prompts):
            if averaged:
                found.paired.add(float(a[i].mean()), float(b[i].mean()), str(i))
            else:
                for one, two in zip(a[i], b[i], strict=True):
                    found.paired.add(float(one), float(two), str(i))
        found.worst = found.paired
        outcome = judging.judge(found, AcceptanceRule(margin=margin), "score").outcome
        count += outcome is Outcome.PASS
    return count / RUNS


@pytest.mark.dear
@pytest.mark.parametrize("averaged", [False, True], ids=["copies", "avg@k"])
def test_a_target_that_is_worse_by_the_margin_passes_in_five_of_a_hundred(averaged: bool) -> None:
    share = passed(50, 8, 0.1, worse=True, averaged=averaged, seed=1)
    assert share <= 0.05 + 2 * 0.0154


@pytest.mark.dear
def test_as_many_prompts_as_are_required_have_the_power_asked_for() -> None:
    # Of equally good sides a prompt's difference varies by 2 p (1 - p) / k: E = 0.3333 / 8.
    needed = round((1.6449 + 0.8416) ** 2 * (1 / 3 / 8) / 0.08**2)
    assert needed == 40
    share = passed(needed, 8, 0.08, worse=False, averaged=False, seed=2)
    assert 0.7 <= share <= 0.9
