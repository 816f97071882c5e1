"""An example of a codemod: apex's fused optimisers become torch's own, with `fused=True`.

    [tool.joymigrate]
    codemods = ["examples/codemods"]
"""

from typing import ClassVar

import libcst as cst
from libcst.codemod.visitors import AddImportsVisitor, RemoveImportsVisitor

from joymigrate.codemods import Case, Codemod, Tier

OPTIMISERS = {"FusedAdam": "AdamW", "FusedSGD": "SGD"}


class ApexOptimisers(Codemod):
    RULE = "EX001"
    NAME = "apex-optimiser"
    TITLE = "An optimiser of apex, which is built with CUDA"
    MESSAGE = "apex is built with CUDA: `{before}`"
    WHY = "torch's own optimisers have a fused form on every device that supports it."
    AREA = "packages"
    TIER = Tier.UNSAFE
    WORDS = ("FusedAdam", "FusedSGD", "FusedLAMB")
    TOGETHER = True
    CASES: ClassVar = (
        Case(
            before="import torch\nfrom apex.optimizers import FusedAdam\n\n"
            "o = FusedAdam(m.parameters(), lr=1e-3)\n",
            after="import torch\nfrom torch.optim import AdamW\n\n"
            "o = AdamW(m.parameters(), lr=1e-3, fused=True)\n",
        ),
        # Its own step is another one: a person decides.
        Case(before="from apex.optimizers import FusedLAMB\no = FusedLAMB(p)\n"),
        Case(before="from ours import FusedAdam\no = FusedAdam(p)\n", keep=True),
    )

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        name = self.view.dotted(original_node.func) or ""
        package, _, optimiser = name.rpartition(".")
        if package != "apex.optimizers":
            return updated_node
        if optimiser not in OPTIMISERS:
            self.report(original_node, "torch has no such optimiser; take it from a package")
            return updated_node
        becomes = OPTIMISERS[optimiser]
        AddImportsVisitor.add_needed_import(self.context, "torch.optim", becomes)
        RemoveImportsVisitor.remove_unused_import(self.context, package, optimiser)
        fused = cst.Arg(
            cst.Name("True"), cst.Name("fused"), equal=cst.AssignEqual(
                cst.SimpleWhitespace(""), cst.SimpleWhitespace("")
            )
        )  # fmt: skip
        return updated_node.with_changes(func=cst.Name(becomes), args=[*updated_node.args, fused])
