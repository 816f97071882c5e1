"""Which calls are replayed module by module, what of it is written, and what a replay reads."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_torch

from joymigrate.language import Text
from joymigrate.verify import pytree
from joymigrate.verify.baseline import Baseline
from joymigrate.verify.bundle.write import RankWriter
from joymigrate.verify.cloning import clone_module
from joymigrate.verify.evidence_pack import CASE, EVIDENCE
from joymigrate.verify.isolated_pass import (
    Float64Reference,
    IsolatedPass,
    content_of,
    keep_generators,
    make_reference,
)
from joymigrate.verify.measure import relative_error
from joymigrate.verify.modes import mode_of
from joymigrate.verify.module_names import plain, unwrap
from joymigrate.verify.ranks import rank_and_world
from joymigrate.verify.settings import RecordingSettings
from joymigrate.verify.tensor_store import NamedTensors, TensorStore
from joymigrate.verify.whole_copy import is_fully_sharded, spread_names, whole_copy, whole_size
from joymigrate.verify.witness import Witness

# A tensor-parallel module and its copy with whole weights, in float32 and in 16 bits.
COPIED = {False: 2.0**-10, True: 2.0**-5}
MOST_REPLAYED_CALLS = 2  # of one outermost module


class ReplaySession:
    """The replayed calls of one process, in a recording and in a replay."""

    def __init__(self, settings: RecordingSettings, writer: Callable[[], RankWriter]) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self.given: dict[str, int] = {}  # place → replayed calls so far
        self.first_mode: dict[str, str] = {}  # place → how it was called first
        self.left = settings.budget_bytes
        self.recorded_calls: list[dict[str, Any]] = []
        self.written_calls = 0  # of these
        self.refused: set[str] = set()  # places with spread weights that are not taught
        self.expected: dict[str, list[torch.Tensor]] = {}  # what a whole copy returned, by place
        self.contents: set[str] = set()  # of tensors that stand in other files
        self.weights: dict[str, dict[str, str]] = {}  # place → name → content
        self.weight_tensors = TensorStore("weights", writer)
        self.reference_tensors = TensorStore("forced", writer)
        self.results: list[dict[str, Any]] = []
        self.witness = Witness()
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
        outer, module = module, unwrap(module)
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
            number
            and recorder.step not in steps
            and not recorder.fills_caches()
            and not (recorder.recording and self.hides_less(key, module))
        ):
            return
        if (self.settings.stats_only or self.settings.again) and self.baseline is None:
            return
        if isinstance(number, int):
            self.given[key] = number + 1
        gathered = spread_names(outer)
        if gathered:  # the first call of a module takes place in all processes at once
            whole = self.whole(root, path, outer, args, kwargs, gather=not number)
            if whole is None:
                return
            module = whole
        isolated = IsolatedPass(module, path, args, kwargs, recorder.hold)
        isolated.gathered = gathered
        step = recorder.step
        if self.baseline is not None:
            found = self.baseline.examine(recorder, isolated, root, path, number)
            self.results += [{**item, "step": step} for item in found]
        else:
            self.record(isolated, root, path, step, number)
        if recorder.recording and not recorder.stack and not gathered:
            isolated.values = None
            self.witness.ask(isolated, recorder.values.log)

    def whole(
        self, root: str, path: str, module: Any, args: Any, kwargs: Any, *, gather: bool
    ) -> Any:
        """A copy of a module whose weights are spread over processes, None where it is not taught.
        With it the result of a tensor-parallel module is noted, for `confirm`."""
        key = f"{root}:{path}"
        if key in self.refused:
            return None
        if whole_size(module) > self.settings.budget_bytes:
            self.refuse(root, path, "its whole weights do not fit into --budget")
            return None
        try:
            copied = whole_copy(module, gather=gather)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            self.refuse(root, path, f"its weights can't be brought together: {error}")
            return None
        if gather and not is_fully_sharded(module):
            with torch.no_grad(), keep_generators():
                try:
                    made = clone_module(copied, None)(*args, **kwargs)
                except Exception as error:  # the module's own code, made for a part
                    self.refuse(root, path, f"its code does not run with whole weights: {error}")
                    return None
            self.expected[key] = [tensor.detach() for _, tensor in pytree.tensors(made)]
        return copied

    def confirm(self, root: str, path: str, made: Any) -> None:
        """What a tensor-parallel module has returned: where the copy with whole weights returns
        something else, the module's code counts with its part, and is not judged by the copy."""
        expected = self.expected.pop(f"{root}:{path}", None)
        if expected is None:
            return
        whole: list[tuple[str, Any]] = pytree.tensors(made)
        found = [
            tensor.full_tensor() if type(tensor).__name__ == "DTensor" else tensor
            for _, tensor in whole
        ]
        least = COPIED[any(t.dtype in (torch.float16, torch.bfloat16) for t in expected)]
        if len(found) == len(expected) and all(
            one.shape == other.shape and relative_error(one.detach(), other) <= least
            for one, other in zip(found, expected, strict=True)
        ):
            return
        self.refuse(root, path, "with whole weights it returns something else")

    def refuse(self, root: str, path: str, why: str) -> None:
        """A module whose weights are spread over processes is not taught."""
        self.refused.add(f"{root}:{path}")
        for calls in (self.recorded_calls, self.results):
            calls[:] = [c for c in calls if (c["root"], c["path"]) != self.names_of(root, path)]
        self.notes.append(
            Text("{root}: weights lie in several processes; it is not taught: {why}",
                 root=f"{root}:{path}", why=why.splitlines()[0][:200])
        )  # fmt: skip

    def names_of(self, root: str, path: str) -> tuple[str, str]:
        """(root, path) of a module as its calls are written: under the baseline's names."""
        if self.baseline is None or root not in self.baseline.roots:
            return root, path
        aligned = self.baseline.alignments.get(root)
        there = aligned.baseline_names.get(path, path) if aligned is not None else path
        return self.baseline.roots[root], there

    def record(
        self,
        isolated: IsolatedPass,
        root: str,
        path: str,
        step: int,
        number: int | str,
    ) -> None:
        """The reference of one call, and with the first one the weights."""
        size = sum(p.numel() * p.element_size() for p in isolated.module.parameters())
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
        begun: dict[str, str] = {}
        if place not in self.weights:
            self.keep_weights(place, isolated.module)
            self.left -= size
        else:  # later: with the weights and buffers that are kept, as a replay has them
            begun = self.keep_written(place, isolated.module)
            held = {**self.weights[place], **begun}
            isolated.values = NamedTensors(self.weight_tensors, held)
        reference = make_reference(isolated, self.left, self.reference_tensors)
        self.left -= reference.bytes
        self.notes += [f"{root}: {note}" for note in reference.notes]
        if not reference.rows:
            self.notes.append(
                Text("{root}: call {number} is not replayed", root=root, number=number)
            )
            return
        entry = {"root": root, "path": path, "step": step, "number": number, "buffers": begun}
        self.recorded_calls.append({**entry, **reference_json(reference)})

    def keep_weights(self, place: str, module: torch.nn.Module) -> None:
        """Parameters and buffers as they are before the first call."""
        named = dict(module.named_parameters(remove_duplicate=False))
        named.update(dict(module.named_buffers(remove_duplicate=False)))  # type: ignore[arg-type]
        self.weights[place] = self.kept({plain(name): t for name, t in named.items()})

    def hides_less(self, place: str, module: torch.nn.Module) -> bool:
        """Whether the call to come shows what the first one hid: buffers that calls have written
        since, of modules that are not torch's own. Not where there are several processes: a model
        that is taught in one alone waits for the others."""
        if rank_and_world()[1] > 1:
            return False
        if self.baseline is not None:
            calls = self.baseline.table.get("lessons", [])
            return any(call["number"] == 1 and call.get("buffers") for call in calls)
        return place in self.weights and bool(self.written(place, module, own=True))

    def written(
        self, place: str, module: torch.nn.Module, *, own: bool = False
    ) -> dict[str, torch.Tensor]:
        """Buffers that are not what they were before the first call: the first values (zeros, an
        infinity) hide what a running value is multiplied by, and what it is used for. `own`: of
        the program's own modules."""
        found = {}
        for path, part in module.named_modules():
            if own and type(part).__module__.partition(".")[0] == "torch":
                continue
            for leaf, buffer in part.named_buffers(recurse=False):
                name = plain(f"{path}.{leaf}".lstrip("."))
                first = self.weight_tensors.get(self.weights[place].get(name, ""))
                if buffer.is_meta or first is None or first.shape != buffer.shape:
                    continue
                if not torch.equal(first, buffer.detach().to("cpu", first.dtype)):
                    found[name] = buffer
        return found

    def keep_written(self, place: str, module: torch.nn.Module) -> dict[str, str]:
        """The same as they are now, where they fit; name → content."""
        found = self.written(place, module)
        size = sum(buffer.numel() * buffer.element_size() for buffer in found.values())
        if size > self.left:
            return {}
        self.left -= size
        return self.kept(found)

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
            table: dict[str, Any] = {"lessons": self.results, "witness": self.witness.found}
            writer.add_json("replay.json", {**table, **self.baseline.report()})
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
            kept = {"lessons": self.recorded_calls, "weights": self.weights}
            writer.add_json("forced.json", {**kept, "witness": self.witness.found})

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
        "shaken": True,  # passes in the program's own type were moved by rounding too
        "mixed": reference.mixed,
        "calls": reference.calls,
        "scalars": reference.scalars,
        "draws": reference.draws,
        "trace": reference.trace,
        "lines": reference.lines,
        "rows": [astuple(row) for row in reference.rows.values()],
    }
