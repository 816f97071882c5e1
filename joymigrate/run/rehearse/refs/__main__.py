"""`python -m joymigrate.run.rehearse.refs`: which of the vendor's operators have a reference.

Prints a markdown table, which is also a page of the documentation.
"""

from __future__ import annotations

import os

from joymigrate.run.rehearse.refs import list_references, signatures
from joymigrate.run.rehearse.refs.missing_references import explain_absence

HEAD = """# Operators of the rehearsal device

An operator with a reference is computed on the rehearsal device; one without fails with the name of
the chip kernel that it would call.
The list is that of torch_npu 2.13.0: its own operators (`npu::`), the operators of torch that have
no CPU kernel (`aten::`), and those of the Ascend Transformer Boost library (`atb::`).
"""


def table() -> str:
    """The whole document."""
    references = list_references()
    names = sorted(signatures())
    covered = [name for name in names if name in references]
    rows = ["| operator | source of its semantics |", "|---|---|"]
    for name in covered:
        home = references[name].function.__module__.rpartition(".")[2] + ".py"
        rows.append(f"| `{name}` | `{home}`: {references[name].source} |")
    missing = ["| operator | why |", "|---|---|"]
    missing += [f"| `{n}` | {explain_absence(n)} |" for n in names if n not in references]
    return "\n".join(
        [
            HEAD,
            f"{len(covered)} of {len(names)} have a reference.\n",
            "## With a reference\n",
            *rows,
            "\n## Without\n",
            *missing,
            "",
        ]
    )


if __name__ == "__main__":
    # Beside torch_npu and without CANN, torch can't be imported unless told to leave it alone.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    print(table(), end="")
