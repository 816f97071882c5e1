"""The figures of generated text: agreement of forced tokens, distances, common prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from joymigrate.language import Text
from joymigrate.report.blocks import Picture, TableBlock
from joymigrate.report.html.plots import Curve, PlotStyle, lines
from joymigrate.report.verdict_parts import VerdictPart, VerdictTable
from joymigrate.report.verdict_words import figure, percent

SHOWN = 50


@dataclass(frozen=True, slots=True)
class GenerationFigures(VerdictPart):
    """The object `generation` of a verdict."""

    KEY: ClassVar[str] = "generation"
    TITLE: ClassVar[str] = "Generation"

    generation: Mapping[str, Any]

    def rows(self) -> Iterator[tuple[str, str]]:
        """(what, figures)."""
        found = self.generation
        yield "prompts", f"{found['prompts']:,}"
        forced = found.get("forced")
        if forced:
            yield "forced tokens", f"{forced['tokens']:,}"
            yield "top-1 agreement", self.beside("top1", percent(100 * forced["top1"]))
            yield "mean KL divergence", self.beside("kl", f"{figure(forced['kl'])} nats")
            shown = f"{figure(forced['logprob'])} (largest {figure(forced['logprob_max'])})"
            yield "mean |difference of log-probabilities|", self.beside("logprob", shown)
        free = found.get("free")
        if free:
            yield (
                "free greedy: equal outputs",
                Text(
                    "{number} of {total}", number=f"{free['equal']:,}", total=f"{free['prompts']:,}"
                ),
            )
            yield (
                "free greedy: common prefix",
                (
                    Text(
                        "mean {mean} of {length} tokens, shortest {least}",
                        mean=f"{free['prefix_mean']:.1f}",
                        length=f"{free['length_mean']:.1f}",
                        least=free["prefix_min"],
                    )
                ),
            )
            yield "free greedy: parted at the first token", f"{free['first_token']:,}"

    def beside(self, name: str, shown: str) -> str:
        """A figure with the baseline's own beside it, where a second run is known."""
        noise = self.generation.get("envelope")
        if not noise or noise.get(name) is None:
            return shown
        own = percent(100 * noise[name]) if name == "top1" else figure(noise[name])
        return Text("{shown}; the baseline with itself {own}", shown=shown, own=own)

    def tables(self) -> list[VerdictTable]:
        """Prompts that part, the earliest first."""
        rows = [
            [e["id"], e["prefix"], str(e["baseline"]), str(e["target"])]
            for e in self.generation.get("examples", ())
        ][:SHOWN]
        head = ["prompt", "common tokens", "baseline next", "target next"]
        table = TableBlock(head, rows)
        return [VerdictTable("Where outputs part", table, "parted")] if rows else []

    def pictures(self) -> list[Picture]:
        """How the distance grows along the text."""
        curve = self.generation.get("by_position") or []
        if not curve:
            return []
        points = [(p["position"], float(p["logprob"])) for p in curve]
        caption = "Distance of forced tokens along the text."
        picture = lines(
            [Curve("mean |difference|", points)],
            caption,
            "token",
            "log-probability difference",
            style=PlotStyle(log=True),
        )
        return [Picture(picture, caption)]
