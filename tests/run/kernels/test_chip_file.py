"""`kernels.yaml`: a chip brings kernels without a line of code in the core."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate import chips
from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels import chipnames, vendors
from joymigrate.run.kernels.select import resolve

HEAD = "schema: joymigrate.chip-kernels/1\n"
ITEM = "implementations: [{op: swiglu, function: 'torch.nn.functional:glu', packages: []}]\n"


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A made-up chip with the CPU's device type, whose kernels.yaml a test writes."""
    chip = dataclasses.replace(chips.get("ascend"), name="acme", device="meta", folder=tmp_path)
    known = {**chips.all_chips(), "acme": chip}
    monkeypatch.setattr(vendors, "all_chips", lambda: known)
    monkeypatch.setattr(chipnames, "all_chips", lambda: known)

    def write(text: str) -> vendors.Mapping[str, Any]:
        (tmp_path / "kernels.yaml").write_text(text)
        vendors.of_chip.cache_clear()
        return vendors.of_chip("acme")

    yield write
    vendors.of_chip.cache_clear()


def test_a_chip_without_the_file_brings_nothing() -> None:
    assert vendors.of_chip("cambricon") == {}


def test_an_item_becomes_an_implementation_of_that_chip(acme: Any) -> None:
    (item,) = acme(HEAD + ITEM)["swiglu"]
    assert (item.name, item.chip, item.devices, item.priority) == ("vendor", "acme", ("meta",), 50)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("implementations: []\n", "'schema' is missing"),
        (HEAD + "implementations: [{op: swiglu}]\n", "'function' is missing"),
        (HEAD + ITEM.replace("packages", "package"), "Did you mean 'packages'"),
    ],
)
def test_a_mistake_in_the_file_names_it(acme: Any, text: str, message: str) -> None:
    with pytest.raises(JoyError, match=message) as error:
        acme(text)
    assert "kernels.yaml" in (error.value.where or "")


def test_a_function_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(JoyError, match="cannot be loaded"):
        resolve("torch.nn.functional:no_such_function")


def test_every_shipped_item_names_a_known_operator_its_calls_and_its_source() -> None:
    for chip in chips.all_chips():
        for op, items in vendors.of_chip(chip).items():
            assert op in kernels.operators()
            assert all(item.calls and item.source for item in items)


def test_an_unknown_device_type_stands_for_itself() -> None:
    assert chipnames.of_device("cuda") == chips.origin().name
    assert chipnames.of_device("xyz") == "xyz"
    assert chipnames.resolve(None, torch.device("cpu")) == ("cpu", "cpu")
