"""The least time of a recorded step on a chip, as text and JSON."""

from __future__ import annotations

from typing import Any

from joymigrate.profile.cost.bound import Cost, Scaling
from joymigrate.report.fields import fields

SCHEMA = "joymigrate.cost/1"
MOST = 10


def document(cost: Cost, *, chip: str, trace: str) -> dict[str, Any]:
    """`joymigrate.cost/1`. Times in µs of one step, sizes in bytes."""
    work, peaks = cost.work, cost.peaks
    return {
        "schema": SCHEMA,
        "grade": "documented",
        "chip": chip,
        "trace": trace,
        "peaks": {
            **fields(peaks, "model=name tflops gb_s source note"),
            "links": [fields(one, "cards gb_s latency_us") for one in peaks.links],
        },
        "work": {
            **fields(work, "flops bytes weight_bytes collective_bytes=collectives launches"),
            "casts": fields(work, "calls=casts bytes=cast_bytes"),
            "copies": fields(work, "calls=copies bytes=copy_bytes"),
            **fields(work, "trains uncounted"),
        },
        "bound": fields(cost, "us=bound_us dominates compute_us weights_us collectives_us mfu"),
        "eager": {
            "us": cost.eager_us,
            "mfu": cost.compute_us / cost.eager_us if cost.eager_us else 0.0,
            "operators": [
                {"op": name, "us": us, "by": by} for name, us, by in cost.eager_by[: MOST * 3]
            ],
        },
        "measured": None
        if cost.measured_us is None
        else {"us": cost.measured_us, "mfu": cost.measured_mfu},
        "scaling": [row(one) for one in cost.scaling],
        "notes": list(cost.notes),
    }


def row(one: Scaling) -> dict[str, Any]:
    """One number of cards."""
    least, most = one.efficiency
    return {
        **fields(one, "cards algorithm exchange_us hidden_us shown_us"),
        "efficiency": {"least": least, "most": most},
    }


def milliseconds(us: float | None) -> str:
    """A time, or that nobody knows it."""
    return "unknown" if us is None else f"{us / 1000:.4g} ms"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def text(cost: Cost, *, chip: str, trace: str) -> str:
    """For a terminal."""
    work, peaks = cost.work, cost.peaks
    total = sum(work.flops.values())
    by_type = ", ".join(f"{n / 1e12:.4g} {dtype}" for dtype, n in work.flops.items() if n)
    lines = [
        f"{trace} on {chip} {peaks.name}: a step takes at least {milliseconds(cost.bound_us)}",
        f"  (documented: {peaks.source}; a bound, not a prediction)",
        "",
        f"  TFLOP               {total / 1e12:.4g}" + (f" ({by_type})" if by_type else ""),
        f"  bytes               {size(work.bytes)} as kernels of their own, "
        f"{size(work.weight_bytes)} of weights",
        f"  kernel launches     {work.launches}",
        f"  casts               {work.casts} ({size(work.cast_bytes)})",
        f"  copies              {work.copies} ({size(work.copy_bytes)})",
    ]
    for kind, count in work.collectives.items():
        lines.append(f"  {kind:<19} {size(count)}")
    lines += [
        "",
        f"  compute             {milliseconds(cost.compute_us)}",
        f"  weights from memory {milliseconds(cost.weights_us)}",
    ]
    if work.collectives:
        lines.append(f"  collectives         {milliseconds(cost.collectives_us)}")
    lines += [
        f"  {cost.dominates} dominates: at most {cost.mfu:.1%} of the peak (MFU)",
        f"  one operator after the other: {milliseconds(cost.eager_us)}, "
        f"{cost.compute_us / cost.eager_us if cost.eager_us else 0:.1%} of the peak",
    ]
    if cost.measured_us is not None:
        lines.append(
            f"  measured: {milliseconds(cost.measured_us)}, {cost.measured_mfu:.1%} of the peak, "
            f"{cost.measured_us / cost.bound_us:.2f} times the bound"
        )
    lines += ["", "  operators, each at its own peak"]
    lines += [
        f"    {milliseconds(us):>12}  {by:<8} {name}" for name, us, by in cost.eager_by[:MOST]
    ]
    if cost.scaling:
        lines += ["", "  data parallel        exchange    all hidden  nothing hidden  efficiency"]
    for one in cost.scaling:
        least, most = one.efficiency
        lines.append(
            f"    {one.cards:>5} cards {milliseconds(one.exchange_us):>15} "
            f"{milliseconds(one.hidden_us):>13} {milliseconds(one.shown_us):>15}  "
            f"{least:.0%} to {most:.0%}  ({one.algorithm})"
        )
    lines += [f"note: {note}" for note in cost.notes]
    return "\n".join(lines) + "\n"
