"""The catalogue of faults: each changes its program, and the table of causes names faults that are
there."""

from __future__ import annotations

import ast

from tests.verify.catalogue import FAULTS
from tests.verify.causes_of_faults import TRIED, right_cause

NAMES = {fault.name: fault for fault in FAULTS}


def test_every_fault_has_its_name_and_changes_its_program() -> None:
    assert len(NAMES) == len(FAULTS) >= 500
    for fault in FAULTS:
        ast.parse(fault.source())  # raises where the text is gone


def test_causes_are_listed_of_faults_that_exist() -> None:
    listed = {name.strip() for names in TRIED.values() for name in names.split(";")} - {""}
    assert listed - NAMES.keys() == set()
    assert right_cause(NAMES["loss times 1.1"], "another operator")
    assert right_cause(NAMES["scaler: eval forgotten"], "training mode")
    assert not right_cause(NAMES["padding not masked"], "loss")  # a place, and no cause
    assert not right_cause(NAMES["padding not masked"], "scale")
