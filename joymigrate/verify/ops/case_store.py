"""Arguments and results that a bundle keeps, and the first wrong call as a case to hand on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from joymigrate.verify.evidence_pack import write_case
from joymigrate.verify.measure import relative_error
from joymigrate.verify.ops.call import ReplayCall
from joymigrate.verify.ops.operator import OperatorOverload
from joymigrate.verify.ops.read import LINES, TENSORS, in_bundle, is_bundle
from joymigrate.verify.rest_evidence import LoneCall

LEFT_OUT = {
    "too_large": "their arguments and results did not fit --arguments-budget",
    "unwritable": "their arguments can't be written (sparse, quantised, sharded, generators)",
}


@dataclass(slots=True)
class KeptValues:
    """Values by name, and a folder for the case of the first wrong call (None: none is wanted)."""

    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    evidence: Path | None = None
    uncovered: Sequence[Mapping[str, Any]] = ()  # what, how often and why it was not kept

    def results(
        self, call: ReplayCall, golden: Sequence[torch.Tensor]
    ) -> list[torch.Tensor] | None:
        """The recorded results of a call, where they are as many and of the golden's shapes."""
        found = [self.tensors[name] for name in call.results if name in self.tensors]
        if not found or [t.shape for t in found] != [t.shape for t in golden]:
            return None
        return found

    def hand_on(
        self,
        operator: OperatorOverload,
        values: tuple[Sequence[Any], Mapping[str, Any]],
        results: Sequence[torch.Tensor | None],
        device: str,
    ) -> None:
        """Write the case of a wrong call, if it is the first one that can be written."""
        if self.evidence is not None and write(operator, values, results, device, self.evidence):
            self.evidence = None


def kept_of(path: Path, evidence: Path | None) -> KeptValues:
    """What the bundle at `path` keeps; nothing for other files."""
    if not is_bundle(path):
        return KeptValues()
    rank = in_bundle(path)
    file = rank.file(TENSORS)
    with rank.file(LINES).open(encoding="utf-8") as stream:
        head = json.loads(stream.readline())
    uncovered = [
        {"what": "operators", "count": head[key], "reason": reason}
        for key, reason in LEFT_OUT.items()
        if head.get(key)
    ]
    return KeptValues(dict(load_file(file)) if file.is_file() else {}, evidence, uncovered)


def write(
    operator: OperatorOverload,
    values: tuple[Sequence[Any], Mapping[str, Any]],
    results: Sequence[torch.Tensor | None],
    device: str,
    folder: Path,
) -> bool:
    """Write the case of a call: `values` are its arguments on the CPU, `results` the first one on
    the device, on the CPU in the same types, and in float64. False: it can't be written."""
    target, plain, golden = results
    call = operator.call
    name = f"torch.ops.{str(operator.overload).replace('::', '.')}"
    lone = LoneCall.of(name, *values)
    if lone is None or target is None or golden is None:
        return False
    if not golden.is_floating_point() or target.shape != golden.shape:
        return False
    error = relative_error(target, golden)
    own = relative_error(plain, golden) if plain is not None else 0.0
    module = call.module or call.where or "the program"
    facts: dict[str, Any] = {"module": module, "value": "result", "kind": "operator"}
    facts |= {"error": error, "baseline_error": own}
    case, held = lone.case({"name": name, "error": error, "cpu_error": own}, golden, device)
    write_case({**facts, **case}, save(held), folder)
    return True
