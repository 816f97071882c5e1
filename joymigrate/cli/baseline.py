"""Run an unchanged CUDA program on this machine's CPU, by stand-ins: a baseline without a GPU."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from pathlib import Path

import typer

from joymigrate.cli._common_options import OUTPUT
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import speaker
from joymigrate.cli._output import emit
from joymigrate.language import speaking, with_texts

NEEDS = ("extra:torch",)
FORMATS = ("text", "json")

CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def command(
    program: list[str] | None = typer.Argument(None, metavar="-- COMMAND"),
    cards: int = typer.Option(1, "--cards", min=1, max=64, help="Cards that the program finds."),
    model: str = typer.Option("A100", "--model", help="What the cards call themselves."),
    record: Path | None = typer.Option(
        None, "--record", metavar="NAME.jmb", help="Also record what its modules compute."
    ),
    steps: str = typer.Option("0-2", "--steps", help="Which steps are recorded: 0-2, or one."),
    once: bool = typer.Option(False, "--once", help="With --record: as of `verify record`."),
    module: str | None = typer.Option(None, "-m", help="Run a module, like python -m."),
    form: str | None = typer.Option(None, "--format", help="text or json."),
    output: Path | None = OUTPUT,
    quiet: bool = typer.Option(False, "-q", "--quiet"),
    lang: str | None = LANG,
) -> int:
    """Run COMMAND here as on a machine with GPUs. Its output and exit code are its own."""
    from joymigrate import launching
    from joymigrate.chips import origin
    from joymigrate.extras import need
    from joymigrate.ledger import Ledger, Step, Subject
    from joymigrate.run.door.report import as_text, summarise
    from joymigrate.run.door.settings import DoorSettings
    from joymigrate.run.door.table import properties
    from joymigrate.run.rehearse.report import chosen_format

    need("torch", "torch", what="a baseline")
    form = chosen_format(form, output, FORMATS)
    language = speaker(lang)
    properties(model, origin())
    words = [*(["-m", module] if module else []), *(program or [])]
    resolved = launching.resolve(words)
    with tempfile.TemporaryDirectory(prefix="joymigrate-baseline-") as folder:
        settings = DoorSettings(cards=cards, model=model, notes=folder)
        started = Path(folder) / "started"
        named = {launching.STARTED: str(started)}
        environment = settings.environment(launching.environment(**named))
        if record is not None:
            ours = [sys.executable, "-m", "joymigrate", "verify", "record", "-o", str(record)]
            asked = ["--steps", steps, *(["--once"] if once else []), *(["-q"] if quiet else [])]
            resolved = [*ours, *asked, "--", *words]
            code = launching.run(resolved, environment)
        else:
            code = launching.run_with_hooks(resolved, environment)
        found = summarise(settings, code, words, loaded=started.exists())
    if not quiet:
        with speaking(language):
            print(as_text(found), file=sys.stderr)
    if output is not None:
        with speaking(language):
            said = json.dumps(with_texts(found), indent=1) if form == "json" else as_text(found)
        emit(said + "\n", output)
    if not found["loaded"]:
        return code or 2
    ledger = Ledger.of(Path.cwd())
    ledger.record(
        Step(
            kind="baseline",
            command=shlex.join(["joymigrate", "baseline", "--", *words]),
            chip="cpu",
            subject=Subject(Path(next((w for w in words if w.endswith(".py")), words[0])).stem),
            details={"what": found["what"], "exit_code": code, "refused": len(found["refused"])},
        )
    )
    return code
