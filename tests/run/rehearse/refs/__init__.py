"""Tests of the references; samples are found by file name (`samples_*.py`)."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def all_samples() -> dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Every sample call by operator name; the order of the files is fixed."""
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if found.name.startswith("samples_"):
            importlib.import_module(f"{__name__}.{found.name}")
    from tests.run.rehearse.refs.samples import SAMPLES

    return SAMPLES
