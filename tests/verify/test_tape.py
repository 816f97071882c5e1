"""The tape: what a program computes is computed again, in float64, with other values."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from joymigrate.verify.isolated_pass import exactly
from joymigrate.verify.rest_stage import of_table
from joymigrate.verify.summaries import apart, summary
from joymigrate.verify.tape import Tape
from joymigrate.verify.tape_matching import may_stand_for
from joymigrate.verify.traced_number import Number


def given(*values: object) -> torch.Tensor:
    """A tensor that comes from elsewhere: torch.tensor itself would be on the tape."""
    return torch.from_numpy(np.array(values, dtype=np.float32))


@pytest.fixture
def tape() -> Iterator[Tape]:
    made = Tape(lambda: True, lambda tensor: "other")
    with made:
        yield made
        made.inside = True


def again(tape: Tape, tensor: torch.Tensor, change: dict[int, torch.Tensor] | None = None) -> float:
    tape.inside = True
    return float(tape.rerun([tape.slot(tensor)], change or {}).values[0])


class Misread(TorchDispatchMode):
    """A device whose cumsum takes float32 as if it lay in the order of its rows."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "cumsum" in str(func) and args[0].dtype is torch.float32:
            x = args[0]
            args = (x.as_strided((x.numel(),), (1,)).view(x.shape), *args[1:])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", [Misread, nullcontext])
def test_a_call_that_is_wrong_by_itself_is_found_behind_a_value(tape: Tape, device: Any) -> None:
    x = torch.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    with device():
        total = (x * 1.5).T.cumsum(0).square().sum()
        tape.inside = True
        found = tape.find_wrong_call([tape.slot(total)])
    if device is nullcontext:
        assert found is None
    else:
        assert found is not None
        assert (found["call"][0], found["strides"]) == ("cumsum", "(1, 3)")
        assert found["call"][2].startswith("tests/verify/test_tape.py:")


def test_a_loss_is_computed_again_from_other_values(tape: Tape) -> None:
    logits, labels = given([1.0, 2.0, 0.5]), torch.tensor([1])
    loss = F.cross_entropy(logits, labels, label_smoothing=0.1) * 2
    first = tape.slot(logits).number
    other = torch.tensor([[0.0, 0.0, 3.0]])
    tape.inside = True
    wanted = 2 * F.cross_entropy(other.double(), labels, label_smoothing=0.1)
    assert again(tape, loss, {first: other}) == pytest.approx(float(wanted), rel=1e-12)


def test_a_change_in_place_starts_from_the_value_before_it(tape: Tape) -> None:
    average, weight = given(2.0), given(4.0)
    average.mul_(0.9).add_(weight, alpha=0.1)
    assert again(tape, average) == pytest.approx(2.2, rel=1e-6)
    assert [e.tensor is average for e in tape.changed.values()] == [True]


def test_memory_without_values_holds_one_value_in_every_run(tape: Tape) -> None:
    """A solver fills its result part by part, and hands on what it has."""
    path, ids = torch.empty(2, 3), torch.empty(4, dtype=torch.long)
    path[0] = given(1.0, 2.0, 3.0)
    total = path.sum() + ids.sum()
    assert float(total) == 6 + 3 * 0.0625 + 4
    assert again(tape, total) == float(total)
    torch.empty(4, dtype=torch.bits8)  # torch can't fill it


@pytest.mark.parametrize(("name", "args"), [("relu", ()), ("relu", (True,)), ("elu", (1.0, True))])
def test_a_function_that_works_in_place_has_gradients(
    tape: Tape, name: str, args: tuple[float, ...]
) -> None:
    tape.inside = True  # what a model returns
    returned = given(3.0, 2.0).requires_grad_() * 2
    tape.inside = False
    made = getattr(F, name)(returned, *args, **({} if args else {"inplace": True}))
    loss = (made * made).sum()
    tape.inside = True
    found = tape.rerun([tape.slot(loss)], {}, gradients=True)
    assert found.values[0].item() == 52.0
    assert [gradient.tolist() for gradient in found.gradients.values()] == [[12.0, 8.0]]


def test_what_is_loaded_comes_from_elsewhere(tape: Tape) -> None:
    tape.inside = True
    file = io.BytesIO()
    torch.save(given(2.0, 5.0), file)
    file.seek(0)
    weight = given(0.0, 0.0)
    tape.inside = False
    weight.copy_(torch.load(file))
    assert again(tape, weight.sum()) == 7.0


def test_a_list_of_tensors_that_is_changed_in_place(tape: Tape) -> None:
    gradients = [given(3.0, 4.0), given(0.0)]
    torch._foreach_mul_(gradients, 0.5)
    assert tape.computed_or_changed(gradients[0])
    tape.inside = True
    made = tape.rerun([tape.slot(gradients[0])], {}).values[0]
    assert made.tolist() == [1.5, 2.0]


def test_arithmetic_on_a_number_that_was_read_stays_on_the_tape(tape: Tape) -> None:
    total, count = given(6.0), given(3.0)
    number = 1.0 / (count.item() + 1.0)
    assert isinstance(number, Number)
    mean = total * number
    slot = tape.slot(count).number
    assert again(tape, mean, {slot: given(1.0)}) == 3.0


def test_what_torch_reads_for_itself_is_no_result_of_the_program(tape: Tape) -> None:
    weight = given(1.0, 2.0).requires_grad_()
    adam = torch.optim.Adam([weight], foreach=False, fused=False)  # counts its steps in a tensor
    for _ in range(2):
        weight.grad = given(0.1, 0.2)
        adam.step()
    assert tape.read == []
    (weight.detach().sum() * 2).item()
    assert [name for name, _ in tape.read] == ["item"]


def test_what_is_rounded_stays_rounded_and_goes_on_in_float64(tape: Tape) -> None:
    exact = given(1.0 / 3.0)
    rounded = exact.to(torch.bfloat16) * 2
    assert again(tape, rounded) == 2 * float(torch.tensor(1.0 / 3.0).bfloat16())


def test_what_is_built_without_values_is_no_call(tape: Tape) -> None:
    """Large models are built on the meta device, of which autocast knows nothing."""
    made = torch.ones(2, dtype=torch.bfloat16, device="meta") * 2
    assert made.is_meta
    assert not tape.entries


def test_a_table_knows_what_its_own_calls_round(tape: Tape) -> None:
    """A cosine is zero by rounding alone, and 0.3 is 0.3 on every chip."""
    zero = torch.cos(torch.linspace(0.0, 1.0, 3) * torch.pi / 2)[2]
    plain, literal = torch.linspace(0.0, 1.0, 7) * 2, torch.tensor([0.3, 0.6])
    held, aside = torch.zeros(3) + 1, torch.zeros(3) + 2
    held.numpy()[0] = 5.0
    aside.data.mul_(1.0)
    tape.inside, rounding = True, tape.tables.rounding
    tape.begin()
    assert (rounding(zero) or 0.0) > 1.0
    assert 0.0 < (rounding(plain) or 0.0) < 1e-6
    assert rounding(literal) == 0.0
    assert rounding(held) is None
    assert [of_table({"rounding": r, "short": True}) for r in (0.0, 0.01, None)] == [
        2.0**-7,
        0.1,
        2.0**-5,
    ]


def test_random_numbers_come_from_elsewhere(tape: Tape) -> None:
    noise = torch.randn(3)
    total = (noise * 2).sum()
    slot = tape.slot(noise).number
    assert again(tape, total, {slot: torch.ones(3)}) == 6.0


def test_a_value_that_other_code_has_changed_is_refused() -> None:
    made = Tape(lambda: True, lambda tensor: "weight")
    weight = torch.tensor(1.0)
    with made:
        double = weight * 2
    weight.add_(1)  # off the tape
    with pytest.raises(RuntimeError, match="weight was changed by other code"):
        made.rerun([made.slot(double)], {})


def test_summaries_tell_rearranged_values_apart() -> None:
    a = torch.arange(200.0)
    assert apart(summary(a), summary(a.clone())) == 0
    assert apart(summary(a), summary(a.roll(64))) > 0.1
    assert apart(summary(a * 1.001), summary(a)) == pytest.approx(1e-3, rel=0.5)


def test_what_is_overwritten_whole_does_not_matter() -> None:
    tape = Tape(lambda: True, lambda tensor: "other")
    weight, old, loaded = torch.zeros(3), torch.ones(3), torch.full((3,), 2.0)
    with tape:
        weight.copy_(old)
        weight.copy_(loaded)
        made = weight * 1.0
        weight[:1].copy_(old[:1])  # a part of it
        part = weight * 1.0
    entries, outside, _ = tape.needed([tape.slot(made)])
    assert [entry.name for entry in entries] == ["copy_", "mul"]
    lost = tape.replaced(entries)
    assert [e.tensor is loaded for e in outside if e.slot.number not in lost] == [True]
    assert tape.rerun([tape.slot(part)], {}).values[0].tolist() == [1.0, 2.0, 2.0]


def test_a_view_from_before_all_of_its_memory_was_replaced_can_be_made_again() -> None:
    tape = Tape(lambda: True, lambda tensor: "other")
    garbage, loaded, factor = torch.empty(3), torch.full((3,), 2.0), torch.tensor(3.0)
    with tape:
        flat, part = garbage.detach(), garbage[1:]
        made = factor * 1.0
        made.add_(factor)
        flat.copy_(loaded)
        after = part * made
    entries, outside, _ = tape.needed([tape.slot(after)])
    lost = tape.replaced(entries)
    judged = [e.tensor for e in outside if e.slot.number not in lost]
    assert {id(tensor) for tensor in judged} == {id(loaded), id(factor)}
    assert tape.rerun([tape.slot(after)], {}).values[0].tolist() == [12.0, 12.0]


def test_what_random_numbers_are_drawn_by_is_held_as_it_was_then(tape: Tape) -> None:
    chance = (given([1.0, 2.0, 3.0]) / 0.5).softmax(-1)
    torch.multinomial(chance, 1)
    chance.mul_(0.0)  # the program may use it again
    torch.rand_like(chance)  # takes a shape alone
    (name, slot), *more = tape.drawn
    assert (name, more) == ("multinomial", [])
    tape.inside = True
    (value,) = tape.rerun([slot], {}).values
    assert value[0].tolist() == pytest.approx(torch.tensor([2.0, 4.0, 6.0]).softmax(-1).tolist())


def test_a_mask_is_drawn_in_place_by_its_chances(tape: Tape) -> None:
    mask = torch.ones(2)
    mask.bernoulli_(given(1.0, 2.0) / 4)
    ((name, slot),) = tape.drawn
    assert name == "bernoulli_"
    assert tape.drawn_by[tape.slot(mask).number] == [slot]
    torch.ones(2).uniform_(0.0, 1.0)  # by numbers alone
    assert len(tape.drawn) == 1
    tape.inside = True
    assert tape.rerun([slot], {}).values[0].tolist() == [0.25, 0.5]


def test_dropout_that_is_off_draws_nothing(tape: Tape) -> None:
    kept = F.dropout(given([1.0, 2.0]) * 3, 0.5, training=False).sum()
    assert again(tape, kept) == pytest.approx(9.0)
    assert not tape.drawn


def test_seeds_of_handed_generators_are_noted_when_they_change(tape: Tape) -> None:
    one, two = torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)
    for generator in (one, two, one):
        torch.randn(2, generator=generator)
    torch.randn(2, generator=one.manual_seed(7))
    assert tape.seeds.found == [(0, 5), (1, 6), (0, 7)]


@pytest.mark.parametrize(
    ("theirs", "mine", "may"),
    [
        ("out:key:#0.", "out:query:#0.", False),  # another model's output of the same shape
        ("out:key:#1.", "out:key:#0.", True),
        ("out:key:#0.0", "out:key:#0.1", False),
        ("param:key:a.weight", "param:key:b.weight", False),
        ("out:key:#0.", "out:other:#0.", True),  # nobody knows the target's name for it
        ("made:tensor", "made:tensor", True),
        ("other", "leaf", False),
    ],
)
def test_whose_value_the_baselines_may_stand_for(theirs: str, mine: str, may: bool) -> None:
    assert may_stand_for(theirs, mine, {"key", "query"}) is may


def test_flags_that_the_program_froze_are_switched_and_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends, "__allow_nonbracketed_mutation_flag", False)
    before = torch.backends.cudnn.allow_tf32
    with exactly():
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
