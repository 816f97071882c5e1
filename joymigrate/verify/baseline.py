"""What a replay compares with: one rank of the baseline's bundle, and how the target's modules did
on its values."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from joymigrate.verify import pytree
from joymigrate.verify.align import Alignment, align, read_map
from joymigrate.verify.bundle import Rank, open_bundle
from joymigrate.verify.cut import Cut
from joymigrate.verify.display import Display
from joymigrate.verify.experiments import ModuleRerun
from joymigrate.verify.graphs import class_name
from joymigrate.verify.isolated_pass import Float64Reference, IsolatedPass
from joymigrate.verify.measure import rounding_error
from joymigrate.verify.module_names import plain
from joymigrate.verify.module_replay import ARGUMENTS, OUTPUT
from joymigrate.verify.module_stage import most_ratio, other_numbers
from joymigrate.verify.pairing import find_root
from joymigrate.verify.ranks import rank_and_world
from joymigrate.verify.rest_stage import UNREPEATED
from joymigrate.verify.settings import RecordingSettings
from joymigrate.verify.target_pass import PassResult, examine
from joymigrate.verify.tensor_store import KeptTensors, NamedTensors
from joymigrate.verify.tolerance import Tolerance

ENDING = ".safetensors"


def read_reference(raw: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Float64Reference:
    """A reference from its table."""
    reference = Float64Reference(tensors=tensors, scalars=raw["scalars"], draws=raw["draws"])
    reference.calls, reference.native = raw["calls"], raw["native"]
    reference.mixed = raw.get("mixed", [])
    reference.rows = {cut.key: cut for cut in (Cut(*row) for row in raw["rows"])}
    return reference


class Baseline:
    """What a replay compares with: one rank of the baseline's bundle."""

    def __init__(self, path: Path, settings: RecordingSettings) -> None:
        bundle = open_bundle(path)
        number = rank_and_world()[0]
        known = [rank.number for rank in bundle.ranks]
        self.processes = len(known)
        self.rank: Rank = bundle.rank(number if number in known else known[0])
        self.mapping = read_map(Path(settings.alignment)) if settings.alignment else None
        self.table = self.rank.json("forced.json")
        self.program = self.rank.program
        self.alignments: dict[str, Alignment] = {}
        self.aligned: dict[str, int] = {}  # root → how many of its modules are aligned
        self.roots: dict[str, str] = {}
        self.tensors: KeptTensors | None = None
        self.identity: dict[str, dict[str, Any]] = {}
        self.explained = False  # experiments were made on the first wrong module
        self.evidence: dict[str, Any] = {}  # of it, and its tensors
        self.evidence_tensors: dict[str, torch.Tensor] = {}

    def load(self) -> KeptTensors:
        """All tensors that the baseline kept."""
        if self.tensors is None:
            kept = ("forced-", "weights-", "batches-", "tape-")
            names = [name for name in self.rank.manifest["files"] if name.startswith(kept)]
            self.tensors = KeptTensors(self.rank.file(n) for n in names if n.endswith(ENDING))
        return self.tensors

    def baseline_root(self, recorder: Any, root: str) -> str | None:
        """The baseline's root for one of the target's: by name, by being the model, by class."""
        if root in self.roots:
            return self.roots[root]
        free = [r for r in self.program.get("roots", []) if r["name"] not in self.roots.values()]
        module = recorder.module_names.modules[root]
        holds = any(True for _ in module.parameters())
        mine = {"name": root, "class": class_name(module), "parameters": holds}
        found = find_root(mine, free)
        if found is not None:
            self.roots[root] = found
        return found

    def alignment(self, recorder: Any, root: str, theirs: str) -> Alignment:
        """Names of the target's modules in the baseline."""
        mine = recorder.inventory.modules[root]
        if self.aligned.get(root) != len(mine):  # a model may grow
            self.aligned[root] = len(mine)
            self.alignments[root] = align(
                self.program["modules"].get(theirs, []), mine, self.mapping
            )
        return self.alignments[root]

    def examine(
        self, recorder: Any, isolated: IsolatedPass, root: str, path: str, number: int | str
    ) -> list[dict[str, Any]]:
        """Teach the target's modules, and note how they did."""
        theirs = self.baseline_root(recorder, root)
        if theirs is None:
            return []
        aligned = self.alignment(recorder, root, theirs)
        start = aligned.baseline_names.get(path)
        raw = next(
            (
                entry
                for entry in self.table.get("lessons", [])
                if (entry["root"], entry["path"], entry["number"]) == (theirs, start, number)
            ),
            None,
        )
        if raw is None or start is None:
            return []
        tensors = self.load()
        reference = read_reference(raw, tensors)
        held = self.table["weights"].get(f"{theirs}:{start}", {}) | raw.get("buffers", {})
        back = {
            name: below(rename_weight(join_names(start, name), aligned.target_names), path)
            for name in held
        }
        isolated.values = NamedTensors(tensors, {back[name]: key for name, key in held.items()})
        if number == 0:
            found = unequal_weights(held, tensors, back, isolated.module)
            if isolated.gathered:
                same = {"cast": False, "error": 0.0}
                spread = back.keys() & {n for n in held if back[n] in isolated.gathered}
                found |= {n: {**found.get(n, same), "whole": True} for n in sorted(spread)}
            self.identity.update({f"{theirs}:{join_names(start, n)}": v for n, v in found.items()})
        isolated.mixed = set(reference.mixed)
        isolated.rename = lambda path: aligned.baseline_names.get(path, f"?{path}")
        isolated.skip = lambda path: (
            path.startswith("?")
            or any(fnmatch.fnmatchcase(path, pattern) for pattern in aligned.ignored)
        )
        made = []
        lost = lost_inputs(isolated, reference, start)
        passes: list[torch.dtype | None] = [torch.float32]
        if not lost and (reference.native or not isolated.is_native_float32()):
            passes.append(None)
        called, numbers = by_its_numbers(isolated, reference.scalars.get(f"{start}#0", {}))
        told = self.rank.json(UNREPEATED).get("numbers", {})
        left_out: set[str] = set()
        if called and numbers <= set(told.get(repr((theirs, start, number)), ())):
            isolated, called = called, None  # its own second run was called with others, too
            left_out = numbers
        for dtype in passes:
            outcome = PassResult(error=lost) if lost else examine(isolated, reference, dtype)
            alone = examine(called, reference, dtype) if called and not lost else outcome
            if dtype is torch.float32 and not self.explained:
                self.explain(called or isolated, reference, alone.rows, theirs)
            made.append(
                {
                    "root": theirs,
                    "path": start,  # of the module that was called from outside
                    "number": number,
                    "pass": "fp32" if dtype is not None else "native",
                    "rows": outcome.rows,
                    **({"rows_by_its_numbers": alone.rows} if called else {}),
                    "draws": outcome.draws,
                    "scalars": outcome.scalars,
                    "trace": outcome.trace,
                    "lines": outcome.lines,
                    "unrepeated": sorted(left_out),
                    "failures": outcome.failures,
                    "error": outcome.error,
                }
            )
        return made

    def explain(
        self,
        isolated: IsolatedPass,
        reference: Float64Reference,
        rows: list[dict[str, Any]],
        root: str,
    ) -> None:
        """Experiments on the first wrong value that a module computes, and what is kept of it."""
        most = most_ratio(self.table, Tolerance.of(None).judge, self.processes)
        row = first_wrong_row(reference, rows, most)
        if row is None:
            return
        self.explained = True
        key = (row["path"], row["call"], row["kind"], row["leaf"])
        bench = ModuleRerun(isolated, reference, key, row["owner"], torch.float32)
        bench.run()
        golden = reference.value(key)
        if bench.value is None or golden is None:
            return
        facts: dict[str, Any] = {
            "module": Display(self.program)(f"{root}:{row['owner']}"),
            "value": " ".join((row["kind"], row["path"], row["leaf"])).strip(),
            "kind": "module",
            "error": min(row["error"], 1e300),
            "baseline_error": reference.rows[key].error32,
        }
        tensors = {"target": bench.value, "golden": golden, **bench.known_values(golden)}
        if bench.wrong is not None:
            case, tensors = bench.wrong.pop("case")
            row["experiment"] = {"operator": bench.wrong}
            facts |= case
        else:
            facts, tensors = bench.keep_case(facts) or (facts, tensors)
        self.evidence_tensors = {name: t.contiguous().clone() for name, t in tensors.items()}
        self.evidence = facts

    def report(self) -> dict[str, Any]:
        """How names were aligned."""
        return {
            "roots": self.roots,
            "identity": self.identity,
            "alignment": {root: found.to_json() for root, found in self.alignments.items()},
        }


def by_its_numbers(
    isolated: IsolatedPass, numbers: Mapping[str, Any]
) -> tuple[IsolatedPass | None, set[str]]:
    """The same call with the baseline's plain numbers, and which are others here; None where none
    is."""
    given = pytree.arguments(isolated.args, dict(isolated.kwargs))
    other = other_numbers(numbers, pytree.scalars(given))
    if not other:
        return None, set()
    made = pytree.replace_scalars(given, other)
    args = tuple(made[str(number)] for number in range(len(isolated.args)))
    kwargs = {key: made[key] for key in isolated.kwargs}
    return replace(isolated, args=args, kwargs=kwargs), set(other)


def lost_inputs(isolated: IsolatedPass, reference: Float64Reference, start: str) -> str | None:
    """Words for a call that can't be given what the baseline was given: a tensor that has another
    shape here, and was not kept there."""
    given = pytree.tensors(pytree.arguments(isolated.args, dict(isolated.kwargs)))
    for leaf, tensor in given:
        key = (start, 0, ARGUMENTS, leaf)
        row = reference.rows.get(key)
        if row is None or row.missing or row.shape == list(tensor.shape):
            continue
        if reference.value(key) is None:
            return f"input {leaf} has another shape here, and did not fit --budget in the baseline"
    return None


def first_wrong_row(
    reference: Float64Reference, rows: list[dict[str, Any]], most: float
) -> dict[str, Any] | None:
    """The first wrong value that a module's own code computes; `most` times the baseline's own
    error are none."""
    for row in rows:
        key = (row["path"], row["call"], row["kind"], row["leaf"])
        golden = reference.rows.get(key)
        if row["kind"] not in (ARGUMENTS, OUTPUT) or golden is None or "error" not in row:
            continue
        own_input = row["kind"] == ARGUMENTS and row["path"] == row["owner"]
        if own_input or row["error"] <= most * max(golden.error32, 2.0**-22):
            continue
        return row
    return None


def join_names(start: str, name: str) -> str:
    """A name below a module, as one below the root."""
    return f"{start}.{name}" if start else name


def below(name: str, path: str) -> str:
    """The other way round."""
    return name.removeprefix(f"{path}.") if path else name


def unequal_weights(
    held: dict[str, str],
    tensors: Mapping[str, torch.Tensor],
    back: dict[str, str],
    module: torch.nn.Module,
) -> dict[str, dict[str, Any]]:
    """How far weights and buffers whose values differ are from the baseline's."""
    mine = dict(module.named_parameters(remove_duplicate=False))
    mine.update(dict(module.named_buffers(remove_duplicate=False)))  # type: ignore[arg-type]
    mine = {plain(name): tensor for name, tensor in mine.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, content in held.items():
        theirs, here = tensors.get(content), mine.get(back[name])
        if theirs is None or here is None or theirs.shape != here.shape:
            continue
        value = here.detach().to("cpu")
        if value.dtype == theirs.dtype and torch.equal(value, theirs):
            continue
        # The same weights in another dtype: one is the other's conversion.
        cast = value.dtype != theirs.dtype and (
            torch.equal(theirs.to(value.dtype), value)
            or torch.equal(value.to(theirs.dtype), theirs)
        )
        error = 0.0 if cast else rounding_error(value, theirs)
        found[name] = {"cast": cast, "error": min(error, 1e300)}
    return found


def rename_weight(name: str, back: dict[str, str]) -> str:
    """The target's name of one of the baseline's weights."""
    place, _, leaf = name.rpartition(".")
    place = back.get(place, place)
    return f"{place}.{leaf}" if place else leaf
