"""`joymigrate verify generate`: text of both sides, forced on the baseline's tokens and free."""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer

from joymigrate.cli import _verdicts
from joymigrate.cli._options import spread
from joymigrate.cli._verdicts import VerdictOptions

NEEDS = ("extra:torch",)
WANTS = {"package:transformers": "--model DIR"}


@spread
def command(
    *,
    asked: VerdictOptions,
    baseline: Path | None = typer.Argument(None, metavar="[BASELINE]", help="JSONL."),
    target: Path | None = typer.Argument(
        None, metavar="[TARGET]", help="JSONL; or --model, --url."
    ),
    model: Path | None = typer.Option(None, "--model", help="A model folder to ask."),
    url: str | None = typer.Option(None, "--url", help="An OpenAI-style server to ask."),
    served: str | None = typer.Option(None, "--served-model", help="The model's name there."),
    key: str | None = typer.Option(None, "--key", envvar="OPENAI_API_KEY", help="Its key."),
    prompts: Path | None = typer.Option(None, "--prompts", help="With --record: what to ask."),
    record: bool = typer.Option(False, "--record", help="Write a baseline to -o, compare nothing."),
    length: int = typer.Option(32, "--length", min=1, help="Tokens of a free output."),
    device: str | None = typer.Option(None, "--device", help="Where --model runs."),
    dtype: str = typer.Option("auto", "--dtype", help="auto, float32, bfloat16, float16."),
    envelope: Path | None = typer.Option(None, "--envelope", help="A second run of the baseline."),
    grade: str = _verdicts.GRADE,
) -> int:
    """Compare generated text: two files, or a file and a model that is asked now.

    First `--record --model DIR --prompts FILE -o base.jsonl` on the baseline's machine, then
    `verify generate base.jsonl --model DIR` on the target's.
    """
    from joymigrate.errors import Exit, JoyError
    from joymigrate.extras import need

    if model is not None:
        need("train", "torch", "transformers", what="asking a model")
    from joymigrate.verify import generate, generate_live
    from joymigrate.verify.ops.places import find_device
    from joymigrate.verify.tolerance import Tolerance

    view = asked.view()
    place = _verdicts.place(asked.to, asked.subject, grade)
    if (target is None) == (model is None and url is None) and not record:
        raise JoyError("name one target: a file, --model or --url")
    source: generate_live.AskedModel | None = None
    if model is not None:
        opened_device = find_device(
            _verdicts.device(device, place.chip, rehearse=False), place.chip
        )
        source = generate_live.LocalModel(model, opened_device, dtype, length)
        facts = {"device": opened_device.type, "rehearsal": opened_device.rehearsal}
        place = _verdicts.place_of(place, facts)
    elif url is not None:
        source = generate_live.RemoteModel(url, served, key, length)
    if record:
        if source is None or prompts is None or asked.output is None:
            raise JoyError("--record needs --model or --url, --prompts FILE and -o FILE")
        answered = generate_live.ask(
            source, generate_live.read_prompts(prompts), forced=False, free=True
        )
        lines = (json.dumps(generate_live.as_json(line)) for line in answered.values())
        from joymigrate.cli._output import emit

        emit("\n".join(lines) + "\n", asked.output)
        return Exit.OK
    if baseline is None:
        raise JoyError("which baseline?", help="verify generate BASELINE.jsonl TARGET.jsonl")
    base = generate.read_lines(baseline)
    if source is not None:
        said = generate_live.ask(source, list(base.values()), forced=True, free=True)
    else:
        said = generate.read_lines(target or Path(os.devnull))
    own = generate.read_lines(envelope) if envelope else None
    found, document = generate.verdict(base, said, Tolerance.of(place.chip), own)
    document["rehearsal"] = place.rehearsal
    inputs = [baseline, *([target] if target else [])]
    default = str(model) if model is not None and asked.subject is None else asked.subject
    from dataclasses import replace

    return _verdicts.finish(document, found, replace(place, subject=default), view, inputs)
