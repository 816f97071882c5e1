"""A program under a dispatch mode of ours takes the path that it takes without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from joymigrate.modes import WatchingMode


class Names(WatchingMode):
    """The operators that were called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    real = torch.ctc_loss
    yield
    torch.ctc_loss = real


def loss(lengths: Any, counts: Any, **more: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(10, 4, 5, generator=generator).log_softmax(2)
    targets = torch.randint(1, 5, (8,), generator=generator)
    return F.ctc_loss(scores, targets, lengths, counts, **more)


LENGTHS, COUNTS = torch.tensor([10, 9, 8, 10]), torch.tensor([2, 3, 1, 2])


def test_lengths_on_the_cpu_do_not_meet_the_losses_of_a_device() -> None:
    plain = loss(LENGTHS, COUNTS)
    with Names() as names:
        assert torch.equal(loss(LENGTHS, COUNTS), plain)
    assert "aten._ctc_loss.default" in names.called
    assert "aten._ctc_loss.Tensor" not in names.called  # divides by the lengths where they lie


def test_the_class_and_named_arguments_take_the_same_path() -> None:
    with Names() as names:
        torch.nn.CTCLoss(zero_infinity=True)(
            torch.zeros(6, 3).log_softmax(1), torch.tensor([1, 2]), torch.tensor(6), torch.tensor(2)
        )
        torch.ctc_loss(
            torch.zeros(6, 1, 3).log_softmax(2),
            torch.tensor([[1, 2]]),
            input_lengths=torch.tensor([6]),
            target_lengths=torch.tensor([2]),
        )
    assert names.called.count("aten._ctc_loss.default") == 2


def test_lengths_that_torch_refuses_are_refused_in_its_words() -> None:
    with pytest.raises(RuntimeError) as plain:
        loss(LENGTHS.float(), COUNTS)
    with Names(), pytest.raises(RuntimeError) as watched:
        loss(LENGTHS.float(), COUNTS)
    assert str(watched.value) == str(plain.value)


def test_without_a_mode_torch_gets_what_the_program_gave() -> None:
    with Names():
        pass
    assert torch.equal(loss(LENGTHS, COUNTS), loss(LENGTHS.tolist(), COUNTS.tolist()))


NUMBERS = {"half": 0.5, "two": 2, "yes": True, "complex": 1j}
ARITHMETIC = {
    "mul": lambda a, n: a * n,
    "radd": lambda a, n: n + a,
    "sub": lambda a, n: a - n,
    "div": lambda a, n: a / n,
    "power": lambda a, n: a**n,
    "where": lambda a, n: torch.where(a > 0, n, a) if not isinstance(n, complex) else a + n,
    "in place": lambda a, n: a.clone().float().add_(n) if not isinstance(n, complex) else a * n,
}
BESIDE = {
    "int64": torch.arange(4),
    "bool": torch.tensor([True, True]),
    "float32": torch.rand(3),
    "bfloat16": torch.rand(3).bfloat16(),
    "no dimension": torch.tensor(3),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_plain_number_has_no_more_say_over_the_type_than_without_a_mode(name: str) -> None:
    for beside, tensor in BESIDE.items():
        for word, number in NUMBERS.items():
            if name == "sub" and (beside == "bool" or word == "yes"):
                continue  # torch refuses some of these
            plain = ARITHMETIC[name](tensor, number)
            with Names():
                seen = ARITHMETIC[name](tensor, number)
            assert seen.dtype == plain.dtype, (beside, word)
            assert torch.equal(seen.nan_to_num(), plain.nan_to_num()), (beside, word)
