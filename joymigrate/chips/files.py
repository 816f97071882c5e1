"""Where the rules lie, and reading one YAML file of them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError


def rules_root() -> Path:
    """The `rules` folder: inside the installed package, else beside it in a checkout."""
    package = Path(__file__).parent.parent
    packaged = package / "_rules"
    if packaged.is_dir():
        return packaged
    beside = package.parent / "rules"
    if beside.is_dir():
        return beside
    raise JoyError(
        "the rules of this joymigrate are missing",
        where=str(packaged),
        help="reinstall it: pip install --force-reinstall joymigrate",
    )


@functools.cache
def loader() -> type[Any]:
    """A safe loader that leaves dates as text, so that data is plain and goes to JSON."""
    # The C loader is ten times faster; every wheel of PyYAML has it.
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
        for first, known in base.yaml_implicit_resolvers.items()
    }
    return type("PlainLoader", (base,), {"yaml_implicit_resolvers": resolvers})


def read_yaml(path: Path) -> Any:
    """Parse one YAML file; a syntax error names the file and the line."""
    try:
        return yaml.load(path.read_bytes(), Loader=loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise JoyError(
            f"not valid YAML: {getattr(error, 'problem', error)}",
            where=f"{path}{line}",
            help="correct the file",
        ) from error
