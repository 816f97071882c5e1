"""`serve drill --replay`: recorded ranking requests to two servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from joymigrate.cli._answers import Answer
from joymigrate.errors import Exit, JoyError


@dataclass(frozen=True, slots=True)
class RankingReplay:
    """What the command line asks for."""

    requests: Annotated[
        Path | None, Option("--replay", help="Recorded ranking requests (JSONL).")
    ] = None
    baseline: Annotated[str, Option("--baseline", metavar="URL", help="The server before.")] = ""
    target: Annotated[str, Option("--target", metavar="URL", help="The server behind.")] = ""
    margin: Annotated[float, Option("--margin", help="As in verify task.")] = 0.5
    first: Annotated[int, Option("-k", min=1, help="The first places.")] = 10
    logits: Annotated[bool, Option("--logits", help="Scores are no probabilities.")] = False
    concurrency: Annotated[int, Option("--concurrency", min=1, help="Clients at a time.")] = 8
    rounds: Annotated[int, Option("--rounds", min=1, help="Times that all is asked.")] = 1
    answers: Annotated[
        Path | None, Option("--answers", metavar="FOLDER", help="Keep both sides' scores there.")
    ] = None
    key: Annotated[str, Option("--key", envvar="JOYMIGRATE_API_KEY", help="Of both servers.")] = ""


def run(asked: RankingReplay) -> Answer:
    """Replay; the exit code says whether both rank alike."""
    if asked.requests is None:
        raise JoyError("what to replay is missing", help="--replay FILE")
    for url, option in ((asked.baseline, "--baseline"), (asked.target, "--target")):
        if not url.startswith(("http://", "https://")):
            raise JoyError(f"{option} is the address of a ranking server, got '{url}'",
                           help=f"{option} http://host:8000")  # fmt: skip
    from joymigrate.extras import need

    need("serve", "aiohttp", "orjson", what="a drill")
    from joymigrate.run.serve.ranking import drill
    from joymigrate.verify.model import Outcome
    from joymigrate.verify.task import TaskQuestion
    from joymigrate.verify.tolerance import Tolerance

    limits = Tolerance.of(None)
    question = TaskQuestion(
        asked.margin, alpha=limits.limit("S8", "alpha"), power=limits.limit("S8", "power")
    )
    found, outcome = drill.drill(
        asked.requests, (asked.baseline, asked.target), question, k=asked.first,
        logits=asked.logits, concurrency=asked.concurrency, rounds=asked.rounds, key=asked.key,
        answers=asked.answers,
    )  # fmt: skip
    code = {Outcome.PASS: Exit.OK, Outcome.FAIL: Exit.FOUND}.get(outcome, Exit.INCONCLUSIVE)
    return Answer(found, drill.text(found) + "\n", code)
