"""Which calls are replayed module by module, what of it is written, and what a replay reads."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_torch

from joymigrate.language import Text
from joymigrate.verify import origins, pytree
from joymigrate.verify.align import Alignment, align, read_map
from joymigrate.verify.bundle import Rank, open_bundle
from joymigrate.verify.bundle.write import RankWriter
from joymigrate.verify.cut import Cut
from joymigrate.verify.display import Display
from joymigrate.verify.evidence_pack import CASE, EVIDENCE
from joymigrate.verify.experiments import ModuleRerun, explain
from joymigrate.verify.graphs import class_name
from joymigrate.verify.isolated_pass import (
    CutRow,
    Float64Reference,
    IsolatedPass,
    content_of,
    examine,
    make_reference,
)
from joymigrate.verify.measure import relative_error
from joymigrate.verify.modes import mode_of
from joymigrate.verify.module_names import plain
from joymigrate.verify.module_replay import ARGUMENTS, OUTPUT
from joymigrate.verify.ranks import rank_and_world
from joymigrate.verify.settings import Settings
from joymigrate.verify.tensor_store import TensorStore
from joymigrate.verify.wrong_call import first_wrong

WRONG = 2.0  # times the baseline's own error: what S3 fails (tolerance.yaml)
MOST_REPLAYED_CALLS = 2  # of one outermost module
ORIGIN = " origin"  # after a place: the trained weights that its weights may come from


class ReplaySession:
    """The replayed calls of one process, in a recording and in a replay."""

    def __init__(self, settings: Settings, writer: Callable[[], RankWriter]) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self.given: dict[str, int] = {}  # place → replayed calls so far
        self.first_mode: dict[str, str] = {}  # place → how it was called first
        self.left = settings.budget_bytes
        self.recorded_calls: list[dict[str, Any]] = []
        self.written_calls = 0  # of these
        self.contents: set[str] = set()  # of tensors that stand in other files
        self.weights: dict[str, dict[str, str]] = {}  # place → name → content
        self.weight_tensors = TensorStore("weights", writer)
        self.reference_tensors = TensorStore("forced", writer)
        self.results: list[dict[str, Any]] = []
        self.baseline: Baseline | None = None
        if settings.baseline:
            self.baseline = Baseline(Path(settings.baseline), settings)

    def in_window(self, path: str) -> bool:
        """Whether a module is one of those that `--window` names."""
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.settings.window)

    def replay_call(
        self, recorder: Any, root: str, path: str, module: Any, args: Any, kwargs: Any
    ) -> None:
        """Teach one call, when it is one of those that are."""
        key = f"{root}:{path}"
        mode = mode_of(module, args, kwargs)
        number: Any = self.given.get(key, 0)  # of the first mode; the others go by their name
        steps = self.settings.tensor_steps
        first = self.first_mode.setdefault(key, mode)
        if mode != first:  # one call of every other mode, to the program's end
            if f"{key} {mode}" in self.given:
                return
            self.given[f"{key} {mode}"] = 1
            number = mode
        elif self.given.get(key, 0) >= MOST_REPLAYED_CALLS or (
            number and recorder.step not in steps
        ):
            return
        if self.settings.stats_only and self.baseline is None:
            return
        if any(type(p).__name__ == "DTensor" for p in module.parameters()):
            return
        if isinstance(number, int):
            self.given[key] = number + 1
        isolated = IsolatedPass(module, path, args, kwargs, recorder.hold)
        step = recorder.step
        if self.baseline is not None:
            found = self.baseline.examine(recorder, isolated, root, path, number)
            self.results += [{**item, "step": step} for item in found]
            return
        trained = origins.trained(recorder, root, path)
        self.record(isolated, root, path, step, number, trained)

    def record(
        self,
        isolated: IsolatedPass,
        root: str,
        path: str,
        step: int,
        number: int | str,
        trained: dict[str, torch.Tensor],
    ) -> None:
        """The reference of one call, and with the first one the weights."""
        size = sum(p.numel() * 4 for p in isolated.module.parameters())
        if size > self.left:
            self.notes.append(
                Text(
                    "{root}: weights of {size} MiB do not fit into --budget; no teacher forcing "
                    "(verify bisect records a window of modules)",
                    root=root,
                    size=size >> 20,
                )
            )
            return
        place = f"{root}:{path}"
        if place not in self.weights:
            self.keep_weights(place, isolated.module)
            self.left -= size
            if trained:  # what they may come from: the same bytes are kept once
                self.weights[f"{place}{ORIGIN}"] = self.kept(trained)
        else:  # later: with the weights and buffers that are kept, as a replay has them
            held = self.weights[place]
            isolated.values = {name: self.weight_tensors[key] for name, key in held.items()}
        reference = make_reference(isolated, self.left, self.reference_tensors)
        self.left -= reference.bytes
        self.notes += [f"{root}: {note}" for note in reference.notes]
        if not reference.rows:
            self.notes.append(
                Text("{root}: call {number} is not replayed", root=root, number=number)
            )
            return
        entry = {"root": root, "path": path, "step": step, "number": number}
        self.recorded_calls.append({**entry, **reference_json(reference)})

    def keep_weights(self, place: str, module: torch.nn.Module) -> None:
        """Parameters and buffers as they are before the first call."""
        named = dict(module.named_parameters(remove_duplicate=False))
        named.update(dict(module.named_buffers(remove_duplicate=False)))  # type: ignore[arg-type]
        self.weights[place] = self.kept({plain(name): t for name, t in named.items()})

    def kept(self, named: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """Copies of tensors, each content once; its name → content."""
        made = {}
        for name, tensor in named.items():
            value = tensor.detach().to("cpu").contiguous().clone()
            made[name] = content_of(value)
            self.weight_tensors.add(made[name], value)
        return made

    def write(self, writer: RankWriter, step: int, inputs: Sequence[Any]) -> None:
        """Write what was kept of this step."""
        if self.baseline is not None:
            writer.add_json("replay.json", {"lessons": self.results, **self.baseline.report()})
            if self.baseline.evidence:
                writer.add(EVIDENCE, save_torch(self.baseline.evidence_tensors))
                writer.add_json(CASE, self.baseline.evidence)
            return
        if not self.settings.stats_only and step in self.settings.tensor_steps:
            self.write_batches(writer, step, inputs)
        self.weight_tensors.write()
        self.reference_tensors.write()
        if len(self.recorded_calls) > self.written_calls:
            self.written_calls = len(self.recorded_calls)
            table = {"lessons": self.recorded_calls, "weights": self.weights}
            writer.add_json("forced.json", table)

    def is_kept(self, content: str) -> bool:
        """Whether a tensor stands in a file of the bundle already."""
        held = (self.contents, self.weight_tensors, self.reference_tensors)
        return any(content in place for place in held)

    def write_batches(self, writer: RankWriter, step: int, inputs: Sequence[Any]) -> None:
        """The inputs of top-level calls, each content once."""
        found = {}
        for _, _, _, tensor, _ in inputs:
            value = tensor.to("cpu").contiguous()
            size = value.numel() * value.element_size()
            content = content_of(value)
            known = self.is_kept(content) or content in found
            if known or size > self.left:
                continue
            self.left -= size
            found[content] = value.clone()
        if found:
            writer.add(f"batches-{step}.safetensors", save_torch(found))
            self.contents |= found.keys()


def reference_json(reference: Float64Reference) -> dict[str, Any]:
    """A reference's table."""
    return {
        "native": reference.native,
        "mixed": reference.mixed,
        "calls": reference.calls,
        "scalars": reference.scalars,
        "draws": reference.draws,
        "rows": [
            Cut(
                *key,
                owner=row.owner,
                owner_call=row.owner_call,
                order=row.order,
                dtype=row.dtype,
                shape=list(row.shape),
                missing=row.missing,
                content=row.content,
                norm=row.norm,
                error32=row.error32,
                error=row.error,
            )
            for key, row in reference.rows.items()
        ],
    }


def read_reference(raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Float64Reference:
    """A reference from its table."""
    reference = Float64Reference(tensors=tensors, scalars=raw["scalars"], draws=raw["draws"])
    reference.calls, reference.native = raw["calls"], raw["native"]
    reference.mixed = raw.get("mixed", [])
    for cut in (Cut(*row) for row in raw["rows"]):
        reference.rows[cut.key] = CutRow(
            owner=cut.owner,
            owner_call=cut.owner_call,
            order=cut.order,
            dtype=cut.dtype,
            shape=tuple(cut.shape),
            missing=cut.missing,
            content=cut.content,
            norm=cut.norm,
            error32=cut.error32,
            error=cut.error,
        )
    return reference


class Baseline:
    """What a replay compares with: one rank of the baseline's bundle."""

    def __init__(self, path: Path, settings: Settings) -> None:
        bundle = open_bundle(path)
        number = rank_and_world()[0]
        known = [rank.number for rank in bundle.ranks]
        self.rank: Rank = bundle.rank(number if number in known else known[0])
        self.mapping = read_map(Path(settings.alignment)) if settings.alignment else None
        self.table = self.rank.json("forced.json")
        self.program = self.rank.program
        self.alignments: dict[str, Alignment] = {}
        self.roots: dict[str, str] = {}
        self.tensors: dict[str, torch.Tensor] | None = None
        self.identity: dict[str, dict[str, Any]] = {}
        self.explained = False  # experiments were made on the first wrong module
        self.evidence: dict[str, Any] = {}  # of it, and its tensors
        self.evidence_tensors: dict[str, torch.Tensor] = {}

    def load(self) -> dict[str, torch.Tensor]:
        """All tensors that the baseline kept."""
        if self.tensors is None:
            self.tensors = {}
            for name in self.rank.manifest["files"]:
                if name.startswith(("forced-", "weights-", "batches-", "tape-")):
                    self.tensors.update(load_file(self.rank.folder / name))
        return self.tensors

    def baseline_root(self, recorder: Any, root: str) -> str | None:
        """The baseline's root for one of the target's: by name, by being the model, by class."""
        if root in self.roots:
            return self.roots[root]
        theirs = self.program.get("roots", [])
        free = [r for r in theirs if r["name"] not in self.roots.values()]
        module = recorder.module_names.modules[root]
        kind, holds = class_name(module), any(True for _ in module.parameters())
        found = next((r for r in free if r["name"] == root), None)
        alike = [r for r in free if bool(r["parameters"]) == holds]
        same = [r for r in alike if r["class"] == kind]
        found = found or next(iter(same), None) or (alike[0] if len(alike) == 1 else None)
        if found is not None:
            self.roots[root] = found["name"]
        return found["name"] if found is not None else None

    def alignment(self, recorder: Any, root: str, theirs: str) -> Alignment:
        """Names of the target's modules in the baseline."""
        if root not in self.alignments:
            mine = recorder.inventory.modules[root]
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
        held = self.table["weights"].get(f"{theirs}:{start}", {})
        back = {
            name: below(renamed(joined(start, name), aligned.target_names), path) for name in held
        }
        isolated.values = {
            back[name]: tensors[content] for name, content in held.items() if content in tensors
        }
        if number == 0:
            found = unequal_weights(held, tensors, back, isolated.module)
            theirs_now = self.table["weights"].get(f"{theirs}:{start}{ORIGIN}", {})
            trained = origins.trained(recorder, root, path)
            for name, fact in found.items():
                now, mine = tensors.get(theirs_now.get(name, "")), trained.get(back[name])
                if now is not None and mine is not None and now.shape == mine.shape:
                    fact["drift"] = origins.distance(mine, now)
            self.identity.update({f"{theirs}:{joined(start, n)}": v for n, v in found.items()})
        isolated.mixed = set(reference.mixed)
        isolated.rename = lambda path: aligned.baseline_names.get(path, f"?{path}")
        isolated.skip = lambda path: (
            path.startswith("?")
            or any(fnmatch.fnmatchcase(path, pattern) for pattern in aligned.ignored)
        )
        made = []
        shaped = given_other_shapes(isolated, reference, start)
        passes: list[torch.dtype | None] = [torch.float32]
        if reference.native or not isolated.is_native_float32():
            passes.append(None)
        for dtype in passes:
            outcome = examine(isolated, reference, dtype)
            if dtype is torch.float32 and not self.explained:
                self.explain(isolated, reference, outcome.rows, theirs)
            made.append(
                {
                    "root": theirs,
                    "path": start,  # of the module that was called from outside
                    "number": number,
                    "pass": "fp32" if dtype is not None else "native",
                    "rows": outcome.rows,
                    "draws": outcome.draws,
                    "scalars": outcome.scalars,
                    "failures": outcome.failures,
                    "error": outcome.error,
                    "other_shapes": shaped,
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
        row = first_wrong_row(reference, rows)
        if row is None:
            return
        self.explained = True
        key = (row["path"], row["call"], row["kind"], row["leaf"])
        bench = ModuleRerun(isolated, reference, key, row["owner"], torch.float32)
        row["experiment"] = explain(bench)
        golden = reference.value(key)
        if bench.value is None or golden is None:
            return
        wrong = first_wrong(bench.calls)
        tensors = wrong.pop("tensors") if wrong is not None else None
        if wrong is not None:
            facts = {key: wrong[key] for key in ("name", "error", "cpu_error")}
            row["experiment"] = {**row["experiment"], "operator": facts}
        if tensors is None:
            tensors = {"target": bench.value, "golden": golden, **bench.known_values(golden)}
        self.evidence_tensors = {name: t.contiguous().clone() for name, t in tensors.items()}
        self.evidence = {
            "module": Display(self.program)(f"{root}:{row['owner']}"),
            "value": " ".join((row["kind"], row["path"], row["leaf"])).strip(),
            "error": min(row["error"], 1e300),
            "baseline_error": reference.rows[key].error32,
            "call": wrong,
        }

    def report(self) -> dict[str, Any]:
        """How names were aligned."""
        return {
            "roots": self.roots,
            "identity": self.identity,
            "alignment": {root: found.to_json() for root, found in self.alignments.items()},
        }


def given_other_shapes(isolated: IsolatedPass, reference: Float64Reference, start: str) -> bool:
    """Whether the target's call is given tensors of other shapes than the baseline's: what its
    modules are handed then are their own values."""
    given = pytree.tensors(pytree.arguments(isolated.args, dict(isolated.kwargs)))
    rows = [(reference.rows.get((start, 0, ARGUMENTS, leaf)), tensor) for leaf, tensor in given]
    return any(row is not None and row.shape != tuple(t.shape) for row, t in rows)


def first_wrong_row(
    reference: Float64Reference, rows: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The first wrong value that a module's own code computes."""
    for row in rows:
        key = (row["path"], row["call"], row["kind"], row["leaf"])
        golden = reference.rows.get(key)
        if row["kind"] not in (ARGUMENTS, OUTPUT) or golden is None or "error" not in row:
            continue
        own_input = row["kind"] == ARGUMENTS and row["path"] == row["owner"]
        if own_input or row["error"] <= WRONG * max(golden.error32, 2.0**-22):
            continue
        return row
    return None


def joined(start: str, name: str) -> str:
    """A name below a module, as one below the root."""
    return f"{start}.{name}" if start else name


def below(name: str, path: str) -> str:
    """The other way round."""
    return name.removeprefix(f"{path}.") if path else name


def unequal_weights(
    held: dict[str, str],
    tensors: dict[str, torch.Tensor],
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
        error = 0.0 if cast else relative_error(value, theirs)
        apart = origins.distance(value, theirs)
        found[name] = {"cast": cast, "error": min(error, 1e300), "apart": apart}
    return found


def renamed(name: str, back: dict[str, str]) -> str:
    """The target's name of one of the baseline's weights."""
    place, _, leaf = name.rpartition(".")
    place = back.get(place, place)
    return f"{place}.{leaf}" if place else leaf
