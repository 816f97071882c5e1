"""What every help ends with: two examples of the command, and what the signs of its output mean."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("_examples.yaml")
SIGNS = (
    "[*] `joymigrate rewrite` writes this edit",
    "[~] only `joymigrate rewrite --unsafe` writes it: look at the result",
    "no sign: to be changed by hand; the line says why",
)
LEGENDS = {"scan": SIGNS, "rewrite": SIGNS}


@functools.cache
def examples() -> Mapping[str, tuple[str, ...]]:
    """Command lines by command, without the program's name."""
    import yaml

    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: tuple(lines) for name, lines in data.items()}


def of(name: str) -> tuple[str, ...]:
    """Two examples of a command; of a group the first ones of two of its commands."""
    known = examples()
    if name in known:
        return known[name]
    return tuple(lines[0] for key, lines in known.items() if key.startswith(f"{name} "))[:2]


def attach(command: Any, name: str) -> None:
    """Let the help of a command and of all below it end with examples; read when it is shown."""

    def format_epilog(ctx: Any, formatter: Any) -> None:
        for title, lines in (
            ("Signs", LEGENDS.get(name, ())),
            ("Examples", tuple(f"joymigrate {line}" for line in of(name))),
        ):
            if lines:
                formatter.write(f"\n{title}:\n" + "".join(f"  {line}\n" for line in lines))

    command.format_epilog = format_epilog
    for short, inner in getattr(command, "commands", {}).items():
        attach(inner, name if short == "default" else f"{name} {short}")
