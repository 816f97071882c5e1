"""Which calls are taught, what of it is written, and what a replay is taught from."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_torch

from joymigrate.language import Text
from joymigrate.verify.align import Alignment, align, read_map
from joymigrate.verify.bundle import Rank, open_bundle
from joymigrate.verify.bundle.write import RankWriter
from joymigrate.verify.lessons import Golden, Lesson, Row, content_of, examine, make_golden
from joymigrate.verify.measure import relative_error
from joymigrate.verify.roots import plain
from joymigrate.verify.settings import Settings

MOST_LESSONS = 2  # of one outermost module


class Classroom:
    """The lessons of one process, in a recording and in a replay."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self.given: dict[str, int] = {}  # place → lessons so far
        self.left = settings.budget_bytes
        self.unwritten: list[tuple[dict[str, Any], Golden]] = []
        self.lessons: list[dict[str, Any]] = []
        self.contents: set[str] = set()
        self.weights: dict[str, dict[str, str]] = {}  # place → name → content
        self.weight_tensors: dict[str, torch.Tensor] = {}
        self.results: list[dict[str, Any]] = []
        self.teacher: Baseline | None = None
        if settings.baseline:
            self.teacher = Baseline(Path(settings.baseline), settings)

    def in_window(self, path: str) -> bool:
        """Whether a module is one of those that `--window` names."""
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.settings.window)

    def lesson(
        self, recorder: Any, root: str, path: str, module: Any, args: Any, kwargs: Any
    ) -> None:
        """Teach one call, when it is one of those that are."""
        key = f"{root}:{path}"
        number = self.given.get(key, 0)
        taught = self.settings.tensor_steps
        if number >= MOST_LESSONS or (number and recorder.step not in taught):
            return
        if self.settings.stats_only and self.teacher is None:
            return
        if any(type(p).__name__ == "DTensor" for p in module.parameters()):
            return
        self.given[key] = number + 1
        lesson = Lesson(module, path, args, kwargs, recorder.hold)
        step = recorder.step
        if self.teacher is not None:
            found = self.teacher.examine(recorder, lesson, root, path, number)
            self.results += [{**item, "step": step} for item in found]
            return
        self.record(lesson, root, path, step, number)

    def record(self, lesson: Lesson, root: str, path: str, step: int, number: int) -> None:
        """The golden of one call, and with the first one the weights."""
        size = sum(p.numel() * 4 for p in lesson.module.parameters())
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
        if f"{root}:{path}" not in self.weights:
            self.keep_weights(f"{root}:{path}", lesson.module)
            self.left -= size
        golden = make_golden(lesson, self.left)
        self.left -= golden.bytes
        self.notes += [f"{root}: {note}" for note in golden.notes]
        if not golden.rows:
            self.notes.append(Text("{root}: call {number} is not taught", root=root, number=number))
            return
        entry = {"root": root, "path": path, "step": step, "number": number}
        self.unwritten.append((entry, golden))

    def keep_weights(self, place: str, module: torch.nn.Module) -> None:
        """Parameters and buffers as they are before the first call."""
        held = self.weights[place] = {}
        named: list[tuple[str, torch.Tensor]] = [*module.named_parameters(remove_duplicate=False)]
        named += [(n, b) for n, b in module.named_buffers(remove_duplicate=False)]
        for name, tensor in named:
            value = tensor.detach().to("cpu").contiguous().clone()
            content = content_of(value)
            held[plain(name)] = content
            self.weight_tensors[content] = value

    def write(self, writer: RankWriter, step: int, inputs: Sequence[Any]) -> None:
        """Write what was taught in this step."""
        if self.teacher is not None:
            writer.add_json("replay.json", {"lessons": self.results, **self.teacher.report()})
            return
        if not self.settings.stats_only and step in self.settings.tensor_steps:
            self.write_batches(writer, step, inputs)
        fresh = {k: v for k, v in self.weight_tensors.items() if k not in self.contents}
        if fresh:
            writer.add(f"weights-{step}.safetensors", save_torch(fresh))
            self.contents |= fresh.keys()
        if not self.unwritten:
            return
        tensors: dict[str, torch.Tensor] = {}
        for entry, golden in self.unwritten:
            tensors.update(golden.tensors)
            self.lessons.append({**entry, **golden_json(golden)})
        fresh = {k: v.contiguous() for k, v in tensors.items() if k not in self.contents}
        if fresh:
            writer.add(f"forced-{step}.safetensors", save_torch(fresh))
            self.contents |= fresh.keys()
        self.unwritten = []
        writer.add_json("forced.json", {"lessons": self.lessons, "weights": self.weights})

    def write_batches(self, writer: RankWriter, step: int, inputs: Sequence[Any]) -> None:
        """The inputs of top-level calls, each content once."""
        found = {}
        for _, _, _, tensor, _ in inputs:
            value = tensor.to("cpu").contiguous()
            size = value.numel() * value.element_size()
            content = content_of(value)
            if content in self.contents or content in found or size > self.left:
                continue
            self.left -= size
            found[content] = value.clone()
        if found:
            writer.add(f"batches-{step}.safetensors", save_torch(found))
            self.contents |= found.keys()


def golden_json(golden: Golden) -> dict[str, Any]:
    """A golden's table."""
    return {
        "native": golden.native,
        "mixed": golden.mixed,
        "calls": golden.calls,
        "scalars": golden.scalars,
        "draws": golden.draws,
        "rows": [
            [
                *key,
                row.owner,
                row.owner_call,
                row.order,
                row.dtype,
                list(row.shape),
                row.missing,
                row.content,
                row.norm,
                row.error32,
                row.error,
            ]
            for key, row in golden.rows.items()
        ],
    }


def read_golden(raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Golden:
    """A golden from its table."""
    golden = Golden(tensors=tensors, scalars=raw["scalars"], draws=raw["draws"])
    golden.calls, golden.native = raw["calls"], raw["native"]
    golden.mixed = raw.get("mixed", [])
    for path, call, kind, leaf, owner, owner_call, order, dtype, shape, *rest in raw["rows"]:
        missing, content, norm, error32, error = rest
        golden.rows[path, call, kind, leaf] = Row(
            owner, owner_call, order, dtype, tuple(shape), missing, content, norm, error32, error
        )
    return golden


class Baseline:
    """The teacher of a replay: one rank of the baseline's bundle."""

    def __init__(self, path: Path, settings: Settings) -> None:
        from joymigrate.verify.recorder import rank_and_world

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

    def load(self) -> dict[str, torch.Tensor]:
        """All tensors that the baseline kept."""
        if self.tensors is None:
            self.tensors = {}
            for name in self.rank.manifest["files"]:
                if name.startswith(("forced-", "weights-", "batches-")):
                    self.tensors.update(load_file(self.rank.folder / name))
        return self.tensors

    def baseline_root(self, recorder: Any, root: str) -> str | None:
        """The baseline's root for one of the target's: by name, by being the model, by class."""
        if root in self.roots:
            return self.roots[root]
        theirs = self.program.get("roots", [])
        free = [r for r in theirs if r["name"] not in self.roots.values()]
        module = recorder.roots.modules[root]
        kind, holds = type(module).__name__, any(True for _ in module.parameters())
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
        self, recorder: Any, lesson: Lesson, root: str, path: str, number: int
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
        golden = read_golden(raw, tensors)
        held = self.table["weights"].get(f"{theirs}:{start}", {})
        back = {
            name: below(renamed(joined(start, name), aligned.target_names), path) for name in held
        }
        lesson.values = {
            back[name]: tensors[content] for name, content in held.items() if content in tensors
        }
        if number == 0:
            found = unequal_weights(held, tensors, back, lesson.module)
            self.identity.update({f"{theirs}:{joined(start, n)}": v for n, v in found.items()})
        lesson.mixed = set(golden.mixed)
        lesson.rename = lambda path: aligned.baseline_names.get(path, f"?{path}")
        lesson.skip = lambda path: (
            path.startswith("?")
            or any(fnmatch.fnmatchcase(path, pattern) for pattern in aligned.ignored)
        )
        made = []
        passes: list[torch.dtype | None] = [torch.float32]
        if golden.native or not lesson.is_native_float32():
            passes.append(None)
        for dtype in passes:
            outcome = examine(lesson, golden, dtype)
            made.append(
                {
                    "root": theirs,
                    "number": number,
                    "pass": "fp32" if dtype is not None else "native",
                    "rows": outcome.rows,
                    "draws": outcome.draws,
                    "scalars": outcome.scalars,
                    "failures": outcome.failures,
                    "error": outcome.error,
                }
            )
        return made

    def report(self) -> dict[str, Any]:
        """How names were aligned."""
        return {
            "roots": self.roots,
            "identity": self.identity,
            "alignment": {root: found.to_json() for root, found in self.alignments.items()},
        }


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
        found[name] = {"cast": cast, "error": min(error, 1e300)}
    return found


def renamed(name: str, back: dict[str, str]) -> str:
    """The target's name of one of the baseline's weights."""
    place, _, leaf = name.rpartition(".")
    place = back.get(place, place)
    return f"{place}.{leaf}" if place else leaf
