"""The options of `serve simulate`, as the question that they ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

if TYPE_CHECKING:
    from joymigrate.run.serve.gateway.study import StudyQuestion


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """What would be known, and of which traffic."""

    rate: Annotated[
        list[str], Option("--rate", help="A true failure rate such as 0.11% (may be repeated).")
    ] = field(default_factory=list)
    failures: Annotated[
        Path | None,
        Option(
            "--failures", help="A recorded stream: the gateway's request log, CSV, or 0s and 1s."
        ),
    ] = None
    upstream: Annotated[str | None, Option("--upstream", help="Which upstream of the record.")] = (
        None
    )
    rule: Annotated[
        list[str],
        Option("--rule", help="eprocess, eprocess:limit=0.002,alpha=0.01 … (may be repeated)"),
    ] = field(default_factory=list)
    access_log: Annotated[
        list[str],
        Option(
            "--access-log",
            metavar="[NAME=]FILE",
            help="Judge a standby by logs of LiteLLM, or of each vLLM server (repeat it).",
        ),
    ] = field(default_factory=list)
    standby: Annotated[str, Option("--standby", help="Its name in the --access-log.")] = ""
    runs: Annotated[int, Option("--runs", min=1, help="Runs per rate and rule.")] = 2000
    horizon: Annotated[int, Option("--horizon", min=1, help="Standby requests per run.")] = 100_000
    seed: Annotated[int, Option("--seed", help="Equal seeds give equal results.")] = 0
    traffic: Annotated[
        str | None,
        Option("--traffic", help="Your traffic, such as 30000/day: adds the ramp's calendar."),
    ] = None
    shadow: Annotated[float, Option("--shadow", min=0, max=100, help="Percent mirrored.")] = 0.0
    config: Annotated[Path | None, Option("--config", help="Take plan and rule from a file.")] = (
        None
    )
    requests_per_second: Annotated[
        float,
        Option("--requests-per-second", min=1e-6, help="At the standby."),
    ] = 100.0

    def question(self) -> StudyQuestion:
        """What the study reads. Raises `JoyError` for a rate or traffic that is none."""
        from joymigrate.run.serve.gateway import study

        return study.StudyQuestion(
            rates=tuple(study.parse_rate(text) for text in self.rate),
            record=self.failures,
            upstream=self.upstream,
            rules=tuple(self.rule),
            runs=self.runs,
            horizon=self.horizon,
            seed=self.seed,
            requests_per_s=study.parse_traffic(self.traffic) if self.traffic else None,
            shadow=self.shadow,
            config=self.config,
            standby_per_s=self.requests_per_second,
            logs=tuple(self.access_log),
            standby=self.standby,
        )
