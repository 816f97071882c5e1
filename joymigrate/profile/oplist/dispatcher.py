"""What torch's dispatcher really holds for a chip, written as JSON.

    python -m joymigrate.profile.oplist.dispatcher --package NAME -o FILE

Runs where the chip's torch package imports: on the chip's machine, or in a rehearsal. Kernels that
joymigrate itself has put over the package's own (a rehearsal does) are looked through.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SCHEMA = "joymigrate.dispatch/1"
KEY = "PrivateUse1"
LINE = re.compile(r"(?P<key>\w+)(?:\[\w+\])?(?: \(inactive\))?: (?P<where>.*)")
EXPLICIT = "CompositeExplicitAutograd"
FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"
IMPLICIT = "CompositeImplicitAutograd"
OURS = str(Path(__file__).parents[2])


def kind(lines: Iterable[str], key: str) -> str:
    """kernel, delegated, composite or none: what answers for one operator on the chip."""
    keys: set[str] = set()
    for line in lines:
        found = LINE.match(line)
        if found and not (found["key"] == key and OURS in found["where"]):
            keys.add(found["key"])
    if key in keys:
        return "kernel"
    if FUNCTIONAL in keys:
        return "delegated"
    return "composite" if keys & {EXPLICIT, IMPLICIT} else "none"


def dump(package: str | None, key: str = KEY) -> dict[str, Any]:
    """Every operator that torch knows after the package was imported."""
    import torch

    version = ""
    if package:
        version = str(getattr(importlib.import_module(package), "__version__", ""))
    ops: dict[str, str] = {}
    for name in torch._C._dispatch_get_all_op_names():
        try:
            text = torch._C._dispatch_dump(name)
        except RuntimeError:
            continue  # a name without a schema
        ops[name] = kind(text.splitlines(), key)
    return {
        "schema": SCHEMA,
        "torch": str(torch.__version__).partition("+")[0],
        "package": package or "",
        "version": version,
        "key": key,
        "ops": dict(sorted(ops.items())),
    }


def read(raw: Any, where: str) -> Mapping[str, Any]:
    """A dump, checked."""
    from joymigrate.errors import JoyError

    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA or not raw.get("ops"):
        raise JoyError(
            "this is no dump of the dispatcher",
            where=where,
            help="python -m joymigrate.profile.oplist.dispatcher --package NAME -o FILE",
        )
    return raw


def main() -> None:
    """Write the dump of this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--package", help="module of the chip's torch package")
    parser.add_argument("--key", default=KEY)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    made = dump(arguments.package, arguments.key)
    arguments.output.write_text(json.dumps(made), encoding="utf-8")


if __name__ == "__main__":
    main()
