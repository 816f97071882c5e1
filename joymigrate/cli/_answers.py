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

import typer

from joymigrate.cli._common_options import OUTPUT
from joymigrate.cli._output import emit, fit, one_of
from joymigrate.errors import Exit
from joymigrate.language import Language, speaking

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found: a document with its `schema`, and what a terminal shows of it.

    `text` is that text, or what makes the document of blocks that every renderer draws; with a
    text alone, Markdown and pages show all fields of the document as tables. `own` says how
    another format looks. All are drawn in `lang`. `code` is the exit code; True is `Exit.FOUND`.
    """

    document: Mapping[str, Any]
    text: str | Callable[[], BlockDocument]
    code: int = Exit.OK
    own: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    lang: str = "en"

    def draw(self, form: str) -> str:
        """The answer in a format that `check_format` let pass."""
        from joymigrate.report import documents, json_, renderers

        if form in self.own:
            return self.own[form]()
        if form == "json":
            return json_.dumps(self.document)
        if not isinstance(self.text, str):
            return renderers.render(self.text(), form)
        if form == "text":
            return self.text
        view = documents.view_of(self.document.get("schema"), "this answer")
        return documents.show(documents.Opened(self.document, view, Path("joymigrate")), form)


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

        for name, default, kind in (
            ("form", format_option(noun), str),
            ("output", OUTPUT, Path | None),
        ):
            only = inspect.Parameter.KEYWORD_ONLY
            own.append(inspect.Parameter(name, only, default=default, annotation=kind))

        @functools.wraps(command)
        def run(form: str, output: Path | None, **words: Any) -> int:
            check_format(form, noun)
            answer = command(**words)
            write_answer(answer, form, output)
            return int(answer.code)

        return with_parameters(run, own)

    return wrap


def with_parameters(
    command: Callable[..., int], parameters: list[inspect.Parameter]
) -> Callable[..., int]:
    """The command with these parameters in the eyes of typer."""
    vars(command).pop("__wrapped__")  # typer reads the signature of what is wrapped otherwise
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def format_option(noun: str, note: str = "") -> Any:
    """`--format` of the commands that write such documents; `note` is said of one of them."""
    *others, last = formats_of(noun)
    return typer.Option("text", "--format", help=f"{', '.join(others)} or {last}.{note}")


def formats_of(noun: str) -> tuple[str, ...]:
    """The formats of one kind of document."""
    from joymigrate.report import renderers, tables

    rows = tables.FORMATS if noun in tables.ROWS else ()
    return ("text", "json", *renderers.DRAWN, *MORE.get(noun, ()), *rows)


def check_format(form: str, noun: str) -> str:
    """`form` when such a document has it; `JoyError` with the nearest name otherwise."""
    return one_of(form, formats_of(noun), "--format")


def write_answer(answer: Answer, form: str, output: Path | None = None) -> None:
    """Write an answer in a format that `check_format` let pass."""
    from joymigrate.report import tables

    if form in tables.FORMATS:
        tables.write(tables.frame_of(answer.document), form, output)
        return
    lang = "en" if form == "json" else answer.lang
    with speaking(Language(lang, answer.document.get("texts"))):
        made = answer.draw(form)
    if form == "text":
        made = made if isinstance(answer.text, str) or form in answer.own else fit(made, output)
        made = made if output is None else COLOR.sub("", made)
    emit(made, output)
