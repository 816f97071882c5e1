"""Which request fields of other engines does the gateway let a broken stream go on behind ids with?

    python -m benchmarks.engine_fields PROTOCOL.py …

Reads the pydantic classes ChatCompletionRequest and CompletionRequest (and their bases in the same
file) from the source files of vLLM or SGLang given, runs none of it, and prints each field with
what the gateway does where it has a value: `exact` (the continuation takes it up), `settled` (it is
about the prompt, which the continuation has), `compared` (the question is asked again, and what it
says is compared).
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from joymigrate.run.serve.gateway.resume import PASSED_ON, SETTLED

CLASSES = ("ChatCompletionRequest", "CompletionRequest")


def fields_of(path: Path) -> set[str]:
    """Names of the public fields of both requests."""
    classes = {one.name: one for one in ast.parse(path.read_text(encoding="utf-8")).body
               if isinstance(one, ast.ClassDef)}  # fmt: skip
    found: set[str] = set()
    wanted = [name for name in CLASSES if name in classes]
    while wanted:
        one = classes[wanted.pop()]
        wanted += [ast.unparse(base) for base in one.bases if ast.unparse(base) in classes]
        found |= {
            line.target.id
            for line in one.body
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and not line.target.id.startswith("_")
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    found: set[str] = set()
    for path in parser.parse_args().files:
        found |= fields_of(path)
    for name in sorted(found):
        way = "exact" if name in PASSED_ON else "settled" if name in SETTLED else "compared"
        print(f"{way:<9} {name}")
    print(f"{len(found)} fields")


if __name__ == "__main__":
    main()
