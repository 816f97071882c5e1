"""The figures of a task: accuracies, their difference with its interval, agreement, fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from joymigrate.language import Text, columns, tell
from joymigrate.report.blocks import Badge, Cell, Picture, TableBlock
from joymigrate.report.html.plots import interval_plot
from joymigrate.report.renderers._words import plain
from joymigrate.report.verdict_parts import VerdictPart, VerdictTable
from joymigrate.report.verdict_words import TONES, figure, percent


@dataclass(frozen=True, slots=True)
class TaskFigures(VerdictPart):
    """The object `task` of a verdict."""

    KEY: ClassVar[str] = "task"
    TITLE: ClassVar[str] = "Task"
    WIDTH: ClassVar[int] = 28

    task: Mapping[str, Any]

    def views(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Raw, and normalised where normalisers were named."""
        found = [("raw", self.task["raw"])]
        if self.task["normalised"]:
            found.append(
                (f"normalised ({', '.join(self.task['normalisers'])})", self.task["normalised"])
            )
        return found

    def amount(self, value: Any, signed: bool = False) -> str:
        """A figure in the task's unit."""
        if not isinstance(value, int | float):
            return figure(value)
        sign = "+" if signed else ""
        if self.task["unit"] == "percent":
            return f"{value:{sign}.2f} {'pp' if signed else '%'}"
        return f"{value:{sign}.4g}"

    def rows(self) -> Iterator[tuple[str, str]]:
        """(what, figures) of everything that is known, raw beside normalised."""
        views = self.views()

        def across(show: Any) -> str:
            return " | ".join(show(view) for _, view in views)

        yield (
            "metric",
            self.task["metric"]
            + (f" of {', '.join(self.task['fields'])}" if self.task["fields"] else ""),
        )
        if len(views) > 1:
            yield "figures", " | ".join(name for name, _ in views)
        yield "pairs", f"{self.task['n']:,}"
        if self.task["raw"]["baseline"] is not None:
            yield "baseline", across(lambda v: self.amount(v["baseline"]))
            yield "target", across(lambda v: self.amount(v["target"]))
            yield "difference", across(self.difference)
            yield "margin", self.amount(self.task["margin_pp"], signed=True).lstrip("+")
            yield (
                "lost, gained",
                across(lambda v: f"{v['discordant']['lost']:,}, {v['discordant']['gained']:,}"),
            )
            yield "p, worse by the margin", across(lambda v: figure(v["p_worse_by_margin"]))
            yield "p, no difference", across(lambda v: figure(v["p_different"]))
        yield "agreement", across(lambda v: share(v["agreement"]))
        if self.task["raw"]["baseline_agreement"]:
            yield "baseline with itself", across(lambda v: share(v["baseline_agreement"]))
        if self.task.get("common_prefix") is not None:
            yield (
                "common prefix",
                Text("{number} tokens", number=f"{self.task['common_prefix']:.1f}"),
            )
        yield from self.ranking()
        needed = across(lambda v: figure(v["required_n"]))
        yield (
            Text("pairs needed for power {power} %", power=f"{100 * self.task['power']:g}"),
            needed,
        )
        yield "test", self.task["test"]
        yield from self.oddities()

    def ranking(self) -> Iterator[tuple[str, str]]:
        """What is known of ranked requests beside the metrics."""
        found = self.task.get("ranking")
        if not found:
            return
        yield "requests, users", f"{found['requests']:,}, {found['users']:,}"
        yield "largest difference of scores", figure(found["largest_difference"])
        for name, one in (found["calibration"] or {}).items():
            yield (
                Text("calibration of the {side}", side=name),
                Text(
                    "predicted / observed {ratio}, expected error {error}",
                    ratio=figure(one["predicted_over_observed"]),
                    error=figure(one["expected_error"]),
                ),
            )
        for name, why in found["left_out"].items():
            yield Text("not computed: {name}", name=name), why

    def difference(self, view: Mapping[str, Any]) -> str:
        """Difference and its 90 % interval."""
        ends = view["interval_pp"]
        if ends is None:
            return "–"
        level = 100 * (1 - 2 * self.task["alpha"])
        return (
            f"{self.amount(view['difference_pp'], signed=True)} "
            f"[{figure(ends[0])}, {figure(ends[1])}] ({level:g} %)"
        )

    def oddities(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the data, where something is."""
        task = self.task
        for name, found in task["unmatched"].items():
            if found["count"]:
                yield name.replace("_", " "), f"{found['count']:,} ({', '.join(found['ids'][:5])})"
        for name, number in task["duplicates"].items():
            if number:
                yield Text("repeated ids, {name}", name=name), f"{number:,}"
        if any(task["malformed"].values()):
            both = task["malformed"]
            yield "malformed JSON", f"baseline {both['baseline']:,}, target {both['target']:,}"
        if task["differing_references"]:
            yield "differing references", f"{task['differing_references']:,}"

    def groups(self) -> list[VerdictTable]:
        """Fields and groups."""
        head = ["", "pairs", "baseline", "target", "difference", "agreement", "verdict"]
        found = []
        fields = [
            (name, view["normalised"] or view["raw"])
            for name, view in self.task["by_field"].items()
        ]
        for title, items in (("By field", fields), ("By task", list(self.task["by_task"].items()))):
            if items:
                rows = [self.row(name, view) for name, view in items]
                found.append(VerdictTable(title, TableBlock(head, rows, (1, 2, 3))))
        return found

    def row(self, name: str, view: Mapping[str, Any]) -> list[Cell]:
        """One field or group."""
        return [
            name,
            f"{view['n']:,}",
            self.amount(view["baseline"]),
            self.amount(view["target"]),
            self.difference(view),
            share(view["agreement"]),
            Badge(view["verdict"], TONES[view["verdict"]]),
        ]

    def text(self) -> list[str]:
        """Two columns, then the tables."""
        lines = VerdictPart.text(self)
        for one in self.groups():
            lines.append(f"{tell(one.title)}:")
            rows = [[plain(cell) for cell in row] for row in one.table.rows]
            lines += [f"  {line}" for line in columns([one.table.head, *rows])]
        for one in self.task["examples"][:3]:
            known = one["reference"] is not None
            wanted = tell(", right: {answer}", answer=repr(one["reference"])) if known else ""
            pair = f"{one['baseline']!r} -> {one['target']!r}"
            lines.append(f"{tell(one['change'])} {one['id']}: {pair}{wanted}")
        return lines

    def tables(self) -> list[VerdictTable]:
        """Fields, groups, and pairs that differ."""
        examples = [
            [e["id"], e["change"], e["baseline"], e["target"], e["reference"] or ""]
            for e in self.task["examples"]
        ]
        head = ["id", "change", "baseline", "target", "right"]
        differ = VerdictTable("Pairs that differ", TableBlock(head, examples), "examples")
        return [*self.groups(), *([differ] if examples else ())]

    def pictures(self) -> list[Picture]:
        """The interval against the margin."""
        task = self.task
        if task["interval_pp"] is None:
            return []
        unit = "percentage points" if task["unit"] == "percent" else "score"
        picture = interval_plot(
            [(name, view["difference_pp"], *view["interval_pp"]) for name, view in self.views()],
            -task["margin_pp"],
            Text("difference, target minus baseline ({unit})", unit=unit),
        )
        caption = (
            "Non-inferiority: the target passes when the whole interval lies right of the margin."
        )
        return [Picture(picture, caption)]


def share(interval: Mapping[str, Any] | None) -> str:
    """A share with its 95 % interval."""
    if interval is None:
        return "–"
    low, high = percent(interval["low"]), percent(interval["high"])
    return f"{percent(interval['value'])} [{low.removesuffix(' %')}, {high.removesuffix(' %')}]"
