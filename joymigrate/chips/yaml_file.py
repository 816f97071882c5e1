"""Reads one YAML file; a syntax error names the file and the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError


def read_yaml(path: Path) -> Any:
    """Parse one YAML file; a syntax error names the file and the line."""
    try:
        # The C loader is ten times faster; every wheel of PyYAML has it.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return yaml.load(path.read_bytes(), Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise JoyError(
            f"not valid YAML: {getattr(error, 'problem', error)}",
            where=f"{path}{line}",
            help="correct the file",
        ) from error
