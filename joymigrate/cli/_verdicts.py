"""What the commands that end in a verdict share: options, output, the ledger, the exit code."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from joymigrate.cli._answers import Answer, check_format, format_option, write_answer
from joymigrate.cli._common_options import OUTPUT, TO
from joymigrate.cli._language import language_of
from joymigrate.cli._output import one_of, talk
from joymigrate.errors import Exit
from joymigrate.language import Language, with_texts

if TYPE_CHECKING:
    from joymigrate.ledger import Subject
    from joymigrate.verify.gate import TargetOrigin
    from joymigrate.verify.model import Verdict

GRADES = ("documented", "rehearsed", "measured")

GRADE = typer.Option(
    "documented",
    "--grade",
    help="Where the target's file comes from: measured on the chip, rehearsed, or documented.",
)
CHECKPOINT = typer.Option(None, "--checkpoint", help="The checkpoint that the target ran with.")
LANG = typer.Option(
    None, "--lang", help="en or zh, but json (default: `lang` of the configuration, else en)."
)
FORMAT = format_option("verdict")
SUBJECT = typer.Option(
    None,
    "--subject",
    metavar="NAME",
    help="What the verdict is about, for the ledger: a name, or a model folder.",
)
STRICT = typer.Option(
    False, "--strict", help="Inconclusive (3) where a pass would leave something out."
)
VERBOSE = typer.Option(False, "-v", "--verbose", help="Show passed records as well.")


@dataclass(frozen=True, slots=True)
class VerdictPlace:
    """Where a verdict belongs: the chip, how well it is known, and what it is about."""

    chip: str
    grade: str
    subject: str | None
    checkpoint: str | None = None

    @property
    def rehearsal(self) -> bool:
        """Whether the chip was simulated."""
        return self.grade == "rehearsed"


def place(
    to: str | None, subject: str | None, grade: str = "documented", checkpoint: str | None = None
) -> VerdictPlace:
    """The chip's own name, and the grade; inside a rehearsal everything is rehearsed."""
    from joymigrate.chips import target

    one_of(grade, GRADES, "--grade")
    if os.environ.get("JOYMIGRATE_REHEARSE"):
        grade = "rehearsed"
    return VerdictPlace(target(to).name if to != "cpu" else "cpu", grade, subject, checkpoint)


def device(wish: str | None, chip: str, *, rehearse: bool) -> str:
    """The torch device: the one wished for; else the chip's in a rehearsal or where it is there,
    else the CPU with a line that says so."""
    from joymigrate.device import open_device
    from joymigrate.verify.ops.places import device_of

    if wish is not None:
        return wish
    if chip == "cpu" or rehearse:
        return "cpu" if chip == "cpu" else device_of(chip)
    from joymigrate.chips import get

    return open_device(get(chip)).type


def place_of(place: VerdictPlace, facts: Mapping[str, Any]) -> VerdictPlace:
    """The place of results that this machine made: on the CPU they are about the CPU."""
    if facts.get("rehearsal"):
        return replace(place, grade="rehearsed")
    chip = "cpu" if facts.get("device") == "cpu" else place.chip
    return replace(place, chip=chip, grade="measured")


@dataclass(frozen=True, slots=True)
class VerdictView:
    """How a verdict is shown, and where."""

    form: str
    lang: str = "en"
    output: Path | None = None
    verbose: bool = False


def check_view(form: str, lang: str | None = None) -> VerdictView:
    """The output format and the language."""
    return VerdictView(check_format(form, "verdict"), language_of(lang))


@dataclass(frozen=True, slots=True)
class VerdictOptions:
    """What every command of `verify` that ends in a verdict can be asked."""

    to: str | None = TO
    subject: str | None = SUBJECT
    form: str = FORMAT
    lang: str | None = LANG
    output: Path | None = OUTPUT
    verbose: bool = VERBOSE

    def view(self) -> VerdictView:
        """How the verdict is shown. Raises `JoyError` for an unknown format or language."""
        return replace(check_view(self.form, self.lang), output=self.output, verbose=self.verbose)


def exit_code(outcome: str) -> int:
    """0 pass, 1 fail, 3 inconclusive."""
    return {"pass": Exit.OK, "fail": Exit.FOUND}.get(outcome, Exit.INCONCLUSIVE)


def answer_of(document: Mapping[str, Any], view: VerdictView) -> Answer:
    """The verdict in every format. JSON keeps its words, with what their Chinese is made of under
    `texts`."""
    import time

    from joymigrate.report import verdict, verdict_text

    when = time.strftime("%Y-%m-%d %H:%M") if view.form == "html" else ""
    return Answer(
        with_texts(document),
        lambda: verdict.describe(document, when=when),
        own={"text": lambda: verdict_text.render(document, verbose=view.verbose)},
        lang=view.lang,
    )


def finish(
    document: Mapping[str, Any],
    verdict: Verdict,
    place: VerdictPlace,
    view: VerdictView,
    inputs: Sequence[Path] = (),
    origin: TargetOrigin | None = None,
    *,
    default: str | None = None,
) -> int:
    """Write the verdict, record it, and return the exit code.

    It is recorded where a subject is named, or where the project has a ledger already; without
    one, `default` is its name, else that of the last input.
    """
    from joymigrate.evidence import Grade
    from joymigrate.ledger import Ledger
    from joymigrate.verify import gate

    last = inputs[-1].name.split(".")[0] if inputs else None
    about = subject_of(place.subject or default or last)
    named = {"name": about.name, "sha256": about.sha256} if about else {"name": None}
    document = {
        **document,
        "subject": named,
        "grade": place.grade,
        "target": {"chip": place.chip, **(document.get("target") or {})},
    }
    write_answer(answer_of(document, view), view.form, view.output)
    if about is not None and (place.subject is not None or Ledger.of(Path.cwd()).exists()):
        origin = origin or gate.TargetOrigin(checkpoint=place.checkpoint)
        steps = gate.record(
            verdict,
            about,
            chip=place.chip,
            grade=Grade(place.grade),
            command=shlex.join(["joymigrate", *sys.argv[1:]]),
            origin=replace(origin, inputs=tuple(inputs)),
            document=document,
        )
        numbers = ", ".join(f"{step.id} ({step.stage} {step.verdict})" for step in steps)
        text = "recorded as step {numbers}: {name} on {chip}, {grade}"
        fields = {"name": about.name, "chip": place.chip, "grade": place.grade}
        talk([Language(view.lang)(text, numbers=numbers, **fields)])
    return exit_code(str(document["verdict"]))


def subject_of(named: str | None) -> Subject | None:
    """What a name stands for: a model folder with its hash, as `serve` asks for it; else a name."""
    from joymigrate.ledger import Subject
    from joymigrate.ledger.subject import of_folder

    if named is None:
        return None
    folder = Path(named)
    if not (folder / "config.json").is_file():
        return Subject(folder.resolve().name if folder.is_dir() else named)
    weights = any(folder.rglob("*.safetensors"))
    return of_folder(folder) if weights else Subject(folder.resolve().name)
