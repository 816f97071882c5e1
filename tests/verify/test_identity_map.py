"""Facts about objects: kept while these live, and inherited by nobody."""

from __future__ import annotations

import torch

from joymigrate.verify.identity_map import IdentityMap
from joymigrate.verify.inventory import ModuleInventory
from joymigrate.verify.module_names import ModuleNames
from joymigrate.verify.program_log import ProgramLog


class Held:
    __slots__ = ()  # allows no weak reference


def test_an_object_that_stands_where_another_stood_inherits_nothing() -> None:
    known: IdentityMap[int] = IdentityMap()
    places = set()
    for number in range(100):
        one = torch.zeros(1)
        places.add(id(one))
        assert known.get(one) is None
        assert known.setdefault(one, number) == known.setdefault(one, -1) == number
        assert len(known._held) == 1
        del one
    assert not known._held
    assert len(places) < 100  # else this test has shown nothing


def test_an_object_without_weak_references_is_held() -> None:
    known: IdentityMap[int] = IdentityMap()
    one = Held()
    known.put(one, 3)
    assert known.get(one) == 3
    assert known.get(Held()) is None


def test_parts_that_are_made_anew_have_their_own_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    names, inventory = ModuleNames(), ModuleInventory()
    root, _ = names.open(model)
    places = set()
    for number in range(2, 60):
        part = torch.nn.Linear(2, 2)
        places |= {id(part), id(part.weight)}
        model.add_module(f"part{number}", part)
        names.refresh(root)
        assert names.find(part) == (root, f"part{number}")
        assert (
            inventory.parameter_names(names, [part.weight]).get(part.weight)
            == f"{root}:part{number}.weight"
        )
        delattr(model, f"part{number}")
        del part
    assert len(places) < 2 * 58


def test_every_optimiser_is_counted_by_itself() -> None:
    log = ProgramLog()
    for _ in range(20):
        log.update(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    assert log.updates == {f"SGD {n}": 0 for n in range(20)}
