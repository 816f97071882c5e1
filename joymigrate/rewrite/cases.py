"""The cases of rules with the names of one move filled in, for tests and explanations.

Besides the names that rules know (`{device}`, `{backend}` …) a case may use the canonical name of
an environment variable, tool or name of the torch package for what it becomes
(`{CUDA_VISIBLE_DEVICES}`, `{nvidia-smi}`, `{CUDAGraph}`, `{torch.profiler.profile}`), and
`{resource}`, `{gres}`, `{accelerate}` for the target's words in manifests.
"""

from __future__ import annotations

from dataclasses import replace

from joymigrate.chips import all_chips, relate
from joymigrate.model import Case
from joymigrate.rewrite import rules
from joymigrate.rewrite.context import Context


def names(context: Context) -> dict[str, str]:
    """What cases may put into braces."""
    relation = relate(context.origin, context.chip)
    found = {
        name: advice.to or name
        for table in (relation.variables, relation.tools, relation.renamed, relation.moved)
        for name, advice in table.items()
    }
    found |= {f"tensor.{name}": to for name, to in relation.tensor.items()}
    launch = context.chip.launch
    found |= {key: str(launch[key]) for key in ("resource", "gres") if launch.get(key)}
    settings = launch.get("accelerate") or {}
    found["accelerate"] = str(settings.get("distributed_type") or "MULTI_GPU")
    found["shim_line"] = str(context.chip.shim.get("line") or "")
    return found | rules.vocabulary(context.chip, context.origin)


def fill_case(case: Case, context: Context) -> Case:
    """`case` with its texts as they read for this move. What the rule finds (`before`, `keep`)
    is written out in the origin's words, but for a line that is the target's alone."""
    known = names(context)
    before = rules.fill(case.before, {"shim_line": known["shim_line"]})
    after = case.after
    if after is not None and context.chip.package is None:
        after = after.replace("import {package}\n", "")  # torch itself knows the device
    after = None if after is None else rules.fill(after, known)
    return replace(case, before=before, after=after)


def is_unfilled(case: Case, context: Context) -> bool:
    """Whether a filled case still asks for a name that other chips have and this one lacks."""
    others = [Context.between(one, context.origin) for one in all_chips().values()]
    asked = {name for other in others for name in names(other)} - {*names(context)}
    return any("{" + name + "}" in (case.after or "") for name in asked)
