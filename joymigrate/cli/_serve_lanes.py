"""`serve lanes bench`: throughput and p99 over lanes and batches on this machine."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.errors import Exit, JoyError

KINDS = ("threads", "processes")


def bench(
    model: Path = typer.Argument(..., metavar="MODEL", help="A ranking model."),
    lanes: str = typer.Option("1,2,4", "--lanes", help="Numbers of lanes."),
    batch: str = typer.Option("1,4,16", "--batch", help="Most requests of a batch."),
    kind: str = typer.Option("threads", "--kind", help="threads, processes, or both."),
    seconds: float = typer.Option(1.0, "--seconds", min=0.1, help="Of each setting."),
    to: str | None = typer.Option(None, "--to", help="The chip to run on."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda … instead of --to."),
    format: str = typer.Option("text", "--format", help="text or json."),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="FILE", help="Write the result to a file."
    ),
) -> int:
    """Measure lanes × batch: requests a second, p50 and p99 with every lane kept busy."""
    from joymigrate.cli._output import one_of, split
    from joymigrate.extras import need

    one_of(format, ("text", "json"), "--format")
    kinds = split([kind])
    for one in kinds:
        one_of(one, KINDS, "--kind")
    counts, batches = whole(split([lanes]), "--lanes"), whole(split([batch]), "--batch")
    if not model.exists():
        raise JoyError("there is no such model", where=str(model))
    need("serve", "aiohttp", "orjson", what="serving")
    from joymigrate.cli._serve_model import device_of
    from joymigrate.run.serve.gateway import show
    from joymigrate.run.serve.ranking import lane_bench, trial
    from joymigrate.run.serve.ranking.program import load

    place, _ = device_of(to, device)
    program = load(model, place)
    freedom = trial.find_freedom(program)
    program.signature, alone = freedom.signature, freedom.alone
    rows = lane_bench.bench(program, counts, batches, kinds, seconds, alone)
    found = lane_bench.document(rows, str(model), place)
    text = show.as_json(found) if format == "json" else lane_bench.text(rows)
    show.emit(text, output)
    return Exit.OK


def whole(texts: list[str], option: str) -> list[int]:
    """Whole numbers of at least 1. Raises `JoyError`."""
    for text in texts:
        if not text.isdecimal() or int(text) < 1:
            raise JoyError(f"{option} takes whole numbers from 1, separated by commas, "
                           f"got '{text}'")  # fmt: skip
    return [int(text) for text in texts]
