"""The figures of quantised weights: perplexity, first choices, and the error of every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from joymigrate.language import Text
from joymigrate.report.blocks import TableBlock
from joymigrate.report.verdict_parts import VerdictPart, VerdictTable
from joymigrate.report.verdict_words import figure, percent


@dataclass(frozen=True, slots=True)
class QuantisedFigures(VerdictPart):
    """The object `quantise` of a verdict."""

    KEY: ClassVar[str] = "quantise"
    TITLE: ClassVar[str] = "Quantisation"
    WIDTH: ClassVar[int] = 20

    quantise: Mapping[str, Any]

    def rows(self) -> Iterator[tuple[str, str]]:
        """(what, figures)."""
        found = self.quantise
        yield "weights", f"{found['scheme']}, {found['format']}"
        seen = found["perplexity"]
        ratio = Text("{ratio} times", ratio=f"{seen['ratio']:.4f}")
        yield (
            "perplexity",
            Text(
                "{plain} → {quantised} ({ratio})",
                plain=figure(seen["plain"]),
                quantised=figure(seen["quantised"]),
                ratio=ratio,
            ),
        )
        top = found["top1"]
        ties = Text(
            "{share} with ties of {nats} nats",
            share=percent(100 * top["or_tie"]),
            nats=top["tie_nats"],
        )
        yield (
            "top-1 agreement",
            Text("{share} ({ties})", share=percent(100 * top["agreement"]), ties=ties),
        )
        yield "mean KL divergence", f"{figure(found['kl'])} nats"
        held = "" if found.get("held_out", True) else ", also calibrated with"
        yield (
            "judged by",
            Text(
                "{places} tokens of {samples} samples{held}",
                places=f"{found['places']:,}",
                samples=f"{found['samples']:,}",
                held=held,
            ),
        )
        for note in found.get("notes", ()):
            yield "note", note

    def layers(self) -> list[list[str]]:
        """Layer, its own error, the error up to there."""
        return [
            [one["layer"], figure(one["own"]), figure(one["accumulated"])]
            for one in self.quantise["errors"]
        ]

    def groups(self) -> list[list[str]]:
        """What was searched: linears, where their scale went, errors before and after."""
        made = []
        for one in self.quantise.get("layers", ()):
            into = one["folded_into"] or one["reason"] or "no scale helps"
            parameter = "" if one["parameter"] is None else f" ({one['parameter']:.2f})"
            short = ", ".join(name.rpartition(".")[2] for name in one["linears"])
            name = f"{one['layer']}: {short}"
            nearest, error = figure(one["error_nearest"]), figure(one["error"])
            made.append([name, f"{into}{parameter}", nearest, error])
        return made

    def text(self) -> list[str]:
        """Columns."""
        lines = VerdictPart.text(self)
        lines += ["layer: own error, accumulated"]
        lines += [f"  {name:<28} {own:>10} {grown:>10}" for name, own, grown in self.layers()]
        if self.groups():
            lines += ["linears: scale folded into; error of rounding to nearest → as written"]
        lines += [f"  {name:<44} {into}: {a} → {b}" for name, into, a, b in self.groups()]
        lines += [f"plain: {one['linear']} ({one['reason']})" for one in self.plain()]
        return lines

    def plain(self) -> list[Mapping[str, Any]]:
        """Linears that were left alone."""
        return list(self.quantise.get("plain", ()))

    def tables(self) -> list[VerdictTable]:
        """Errors by layer, and what was searched."""
        head = ["layer", "own error", "accumulated"]
        found = [VerdictTable("", TableBlock(head, self.layers()))]
        if self.groups():
            heads = ["linears", "scale folded into", "to nearest", "as written"]
            found.append(VerdictTable("", TableBlock(heads, self.groups())))
        return found
