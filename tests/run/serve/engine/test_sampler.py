"""The sampler against transformers' own processors, and its draws against their distribution."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.sampler import Choosing, choose, draw, uniform
from joymigrate.run.serve.engine.types import Sampling
from tests.run.serve.engine import models  # noqa: F401  (makes transformers importable)

WIDTH = 50


def scores(rows: int, seed: int = 0, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def row(made: int = 0, seed: int = 1, prompt: list[int] | None = None, **more: object) -> Choosing:
    found = Choosing(Sampling(**more), seed, 0, prompt or [3, 4])  # type: ignore[arg-type]
    for token in range(made):
        found.accept(token)
    return found


def kept(logits: torch.Tensor, sampling: Sampling) -> set[int]:
    """Tokens that 400 draws reach."""
    many = logits.expand(400, -1)
    return set(draw(many, [Choosing(sampling, seed, 0, [1]) for seed in range(400)]))


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.7, "min_p": 0.05},
        {"top_k": 1},
    ],
    ids=str,
)
def test_only_tokens_that_transformers_keeps_are_drawn(options: dict[str, float]) -> None:
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers = LogitsProcessorList([TemperatureLogitsWarper(1.5)])
    if "top_k" in options:
        warpers.append(TopKLogitsWarper(int(options["top_k"])))
    if "top_p" in options:
        warpers.append(TopPLogitsWarper(options["top_p"]))
    if "min_p" in options:
        warpers.append(MinPLogitsWarper(options["min_p"]))
    logits = scores(1)
    warped = warpers(torch.tensor([[0]]), logits.clone())
    shares = torch.softmax(warped, -1)[0]
    allowed = set(warped[0].isfinite().nonzero()[:, 0].tolist())
    drawn = kept(logits, Sampling(temperature=1.5, **options))  # type: ignore[arg-type]
    assert drawn <= allowed
    # Missing by chance: (1 - share)^400 is below 1e-8 for a share of 5 %.
    assert {i for i in allowed if shares[i] > 0.05} <= drawn


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    want = torch.softmax(logits / 0.7, -1)[0]
    count = 4000
    rows = [Choosing(Sampling(temperature=0.7), seed, 0, [1]) for seed in range(count)]
    found = torch.bincount(torch.tensor(draw(logits.expand(count, -1), rows)), minlength=3) / count
    # Four standard deviations of a share near 0.5 in 4,000 draws: 0.032.
    assert torch.allclose(found, want, atol=0.032)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["plain", "top_k", "top_p", "greedy", "min_p"]), max_size=6))
def test_a_row_is_the_same_whatever_else_is_in_the_step(others: list[str]) -> None:
    kinds = {
        "plain": {},
        "top_k": {"top_k": 7},
        "top_p": {"top_p": 0.8},
        "greedy": {"temperature": 0},
        "min_p": {"min_p": 0.1},
    }
    for mine in kinds.values():
        logits = scores(1 + len(others))
        alone = choose(logits[:1], [row(seed=5, **mine)]).ids[0]  # type: ignore[arg-type]
        rows = [row(seed=5, **mine)]  # type: ignore[arg-type]
        rows += [row(seed=i, **kinds[kind]) for i, kind in enumerate(others)]  # type: ignore[arg-type]
        assert choose(logits, rows).ids[0] == alone


def test_many_candidates_are_sorted_whole_and_agree_with_few() -> None:
    flat = torch.zeros(1, 3000)
    flat[0, :2000] = 0.001 * torch.arange(2000)
    sampling = Sampling(top_p=0.9)
    drawn = draw(flat.expand(50, -1), [Choosing(sampling, s, 0, [1]) for s in range(50)])
    assert max(drawn) > 1024 or len(set(drawn)) > 40
    assert all(0 <= token < 3000 for token in drawn)


def test_repetition_penalty_is_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, prompt = scores(1), [3, 4, 9]
    want = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt]), logits.clone())
    found = choose(logits, [row(prompt=prompt, temperature=0, repetition_penalty=1.7)])
    assert found.ids == want.argmax(-1).tolist()


def test_penalties_count_the_output() -> None:
    logits = torch.zeros(1, 6)
    logits[0, 0] = 1.0
    asked = row(temperature=0, frequency_penalty=0.4)
    taken = []
    for _ in range(4):
        token = choose(logits, [asked]).ids[0]
        asked.accept(token)
        taken.append(token)
    assert taken == [0, 0, 0, 1]  # 1.0, 0.6, 0.2, then below 0
    once = row(temperature=0, presence_penalty=1.5)
    choose(logits, [once])
    once.accept(0)
    assert choose(logits, [once]).ids == [1]


def test_a_bias_of_minus_100_forbids_and_of_100_forces() -> None:
    logits = scores(1)
    best = int(logits.argmax())
    assert choose(logits, [row(temperature=0, logit_bias={best: -100})]).ids != [best]
    assert choose(logits, [row(temperature=0, logit_bias={17: 100})]).ids == [17]


def test_no_end_comes_before_min_tokens() -> None:
    logits = torch.zeros(1, 6)
    logits[0, 2] = 9
    asked = row(temperature=0, min_tokens=2)
    asked.ends = (2,)
    assert choose(logits, [asked]).ids != [2]
    asked.accept(0)
    asked.accept(0)
    assert choose(logits, [asked]).ids == [2]


def test_logprobs_are_the_models_own_with_ranks() -> None:
    logits = scores(2)
    want = torch.log_softmax(logits, -1)
    asked = [row(temperature=0, logprobs=3, logit_bias={7: 100}), row(temperature=0)]
    found = choose(logits, asked).logprobs
    assert set(found) == {0}
    assert found[0].id == 7
    assert found[0].logprob == pytest.approx(float(want[0, 7]), abs=1e-6)
    assert found[0].rank == int((want[0] > want[0, 7]).sum()) + 1
    values, places = want[0].topk(3)
    assert [token for token, _ in found[0].top] == places.tolist()
    assert [value for _, value in found[0].top] == pytest.approx(values.tolist(), abs=1e-6)


def test_a_guide_leaves_only_what_it_allows() -> None:
    class Only:
        """Allows one token."""

        taken: list[int] = []  # noqa: RUF012

        def mask(self) -> torch.Tensor:
            words = torch.zeros(2, dtype=torch.int32)
            words[40 // 32] = 1 << (40 % 32)
            return words

        def accept(self, token: int) -> None:
            self.taken.append(token)

    asked = row(seed=2)
    asked.guide = Only()
    assert choose(scores(1), [asked]).ids == [40]
    asked.accept(40)
    assert Only.taken == [40]


def test_a_draw_depends_on_seed_index_and_position_alone() -> None:
    numbers = {
        uniform(seed, index, place)
        for seed in range(20)
        for index in range(5)
        for place in range(20)
    }
    assert len(numbers) == 2000
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / 2000 - 0.5) < 0.03  # four deviations of the mean: 0.026
    assert uniform(1, 2, 3) == uniform(1, 2, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"min_p": 2},
        {"n": 0},
        {"max_tokens": -1},
        {"stop": ("",)},
        {"logprobs": 65},
        {"presence_penalty": 3},
        {"temperature": float("nan")},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_named(wrong: dict[str, object]) -> None:
    with pytest.raises(JoyError, match=next(iter(wrong))):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_sampling_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().temperature = 0  # type: ignore[misc]


def test_a_row_that_fails_changes_no_other() -> None:
    logits = scores(3)
    asked = [row(temperature=0, logprobs=1), row(logit_bias={WIDTH: 1}), row(seed=2, logprobs=0)]
    found = choose(logits, asked)
    assert list(found.broken) == [1]
    assert "cannot be chosen" in found.broken[1]
    for i in (0, 2):
        alone = choose(logits[i : i + 1], [asked[i]])
        assert (alone.ids[0], alone.logprobs[0]) == (found.ids[i], found.logprobs[i])


def test_scores_that_are_no_numbers_are_found_in_their_rows_alone() -> None:
    logits = scores(4)
    logits[1, 7] = float("nan")
    logits[3, 9] = float("nan")
    rows = [row(temperature=0), row(temperature=0), row(seed=1), row(seed=2)]
    found = choose(logits, rows)
    assert list(found.broken) == [1, 3]
    assert found.ids[0] == int(logits[0].argmax())
