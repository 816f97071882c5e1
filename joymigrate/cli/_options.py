"""Options of a long command, declared once: as the fields of dataclasses.

A command names the dataclasses as its parameters. The command line sees one option a field, in
the order of the fields; the command gets the objects.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

from joymigrate.cli._answers import with_parameters


def spread(command: Callable[..., int]) -> Callable[..., int]:
    """The command with each parameter that is a dataclass replaced by the fields of it.

    Fields are annotated as typer wants parameters, `Annotated[str, typer.Option("--to")]`, or have
    an option that several commands share as their default.
    Raises TypeError where two fields have one name.
    """
    hints = get_type_hints(command, include_extras=True)
    given = inspect.signature(command).parameters
    kinds = {name: hints[name] for name in given if is_dataclass(hints[name])}
    parameters: list[inspect.Parameter] = []
    for name, parameter in given.items():
        if name in kinds:
            inner = get_type_hints(kinds[name], include_extras=True)
            parameters += [as_parameter(field, inner[field.name]) for field in fields(kinds[name])]
        else:
            kept = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            parameters.append(kept)
    names = [parameter.name for parameter in parameters]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TypeError(f"{command.__name__} has two options named {', '.join(twice)}")

    @functools.wraps(command)
    def run(**words: Any) -> int:
        made = {
            name: kind(**{field.name: words.pop(field.name) for field in fields(kind)})
            for name, kind in kinds.items()
        }
        return command(**made, **words)

    return with_parameters(run, parameters)


def as_parameter(field: Field[Any], annotation: Any) -> inspect.Parameter:
    """A field as a parameter with its default."""
    default = inspect.Parameter.empty
    if field.default is not MISSING:
        default = field.default
    elif field.default_factory is not MISSING:
        default = field.default_factory()
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
