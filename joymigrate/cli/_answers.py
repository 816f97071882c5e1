"""What commands answer: one registry of formats, and one way to write a document in any of them.

A command decorated with `answers` has `--format` and `-o`, and returns an `Answer`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from joymigrate.cli._common_options import FORMAT, OUTPUT
from joymigrate.cli._output import emit, one_of
from joymigrate.errors import Exit

if TYPE_CHECKING:
    from joymigrate.report.blocks import BlockDocument

# What some kinds of documents have beside their own text, their JSON and what the renderers make of
# their blocks; tables of `report.tables` are added.
MORE: Mapping[str, tuple[str, ...]] = {
    "coverage": ("sarif", "junit", "trace"),
    "advice": ("sarif",),
    "journey": ("junit", "next"),
}
COLOR = re.compile(r"\033\[[\d;]*m")  # which a file does not get
OPTIONS = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    for name, default, kind in (("form", FORMAT, str), ("output", OUTPUT, Path | None))
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found: a document with its `schema`, and what a terminal shows of it.

    Markdown and pages show all fields of the document as tables, unless `own` says how one of
    these formats, or another one, looks. `code` is the exit code; True is `Exit.FOUND`.
    """

    document: Mapping[str, Any]
    text: str
    code: int = Exit.OK
    own: Mapping[str, Callable[[], str]] = field(default_factory=dict)


def answers(noun: str) -> Callable[[Callable[..., Answer]], Callable[..., int]]:
    """A command that answers with documents of one kind: `scan` of `joymigrate.scan/1`.

    It gets `--format` and `-o`. An unknown format is an error before anything is done.
    """

    def wrap(command: Callable[..., Answer]) -> Callable[..., int]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, one in inspect.signature(command).parameters.items()
        ]

        @functools.wraps(command)
        def run(form: str, output: Path | None, **words: Any) -> int:
            check_format(form, noun)
            answer = command(**words)
            if form in answer.own:
                emit(answer.own[form](), output)
            else:
                write_answer(answer.document, form, answer.text, output)
            return int(answer.code)

        return with_parameters(run, [*own, *OPTIONS])

    return wrap


def with_parameters(
    command: Callable[..., int], parameters: list[inspect.Parameter]
) -> Callable[..., int]:
    """The command with these parameters in the eyes of typer."""
    vars(command).pop("__wrapped__")  # typer reads the signature of what is wrapped otherwise
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def pages(describe: Callable[[], BlockDocument]) -> dict[str, Callable[[], str]]:
    """A document of blocks in every format that a renderer has, but text, for `Answer.own`."""
    from joymigrate.report import renderers

    def draw(form: str) -> str:
        return renderers.render(describe(), form)

    return {form: functools.partial(draw, form) for form in renderers.DRAWN}


def formats_of(noun: str) -> tuple[str, ...]:
    """The formats of one kind of document."""
    from joymigrate.report import renderers, tables

    rows = tables.FORMATS if noun in tables.ROWS else ()
    return ("text", "json", *renderers.DRAWN, *MORE.get(noun, ()), *rows)


def check_format(form: str, noun: str) -> str:
    """`form` when such a document has it; `JoyError` with the nearest name otherwise."""
    return one_of(form, formats_of(noun), "--format")


def write_answer(
    document: Mapping[str, Any], form: str, text: str, output: Path | None = None
) -> None:
    """Write a document in a format that `check_format` let pass."""
    from joymigrate.report import documents, json_, tables

    if form in tables.FORMATS:
        tables.write(tables.frame_of(document), form, output)
    elif form == "text":
        emit(text if output is None else COLOR.sub("", text), output)
    elif form == "json":
        emit(json_.dumps(document), output)
    else:
        view = documents.view_of(document.get("schema"), "this answer")
        emit(documents.show(documents.Opened(document, view, Path("joymigrate")), form), output)
