"""`cluster reserve`: cards that belong to a queue, or to nobody, for a window of time."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta

import typer

from joymigrate.cli._cluster_orders import ADDRESS, FORMAT, WHY, ask, give, refuse_empty
from joymigrate.cli._groups import group
from joymigrate.cli._output import emit, one_of
from joymigrate.errors import Exit, JoyError

NAME = typer.Argument(..., help="The reservation's name.", callback=refuse_empty)

reserve_app = group("Reserve cards for a window of time: for a queue, or for maintenance.")


def register(app: typer.Typer) -> None:
    """Add the group to `cluster`."""
    for command in (add, show, cancel):
        reserve_app.command(command.__name__)(command)
    app.add_typer(reserve_app, name="reserve")


def add(
    name: str = NAME,
    start: str = typer.Option(
        "now",
        "--start",
        help="2026-12-01T08:00 (local time, or a zone), now, +90m, +12h, +2d.",
    ),
    hours: float = typer.Option(..., "--hours", help="How long."),
    node: str = typer.Option("", "--node", help="Whole nodes: n1,n2."),
    kind: str = typer.Option("", "--kind", help="Else: a kind of server,"),
    pods: int = typer.Option(1, "--pods", help="how many times"),
    cards: int = typer.Option(0, "--cards", help="so many cards of one node."),
    queue: str = typer.Option("", "--queue", help="Whose jobs may use them; default: nobody's."),
    stop: bool = typer.Option(
        False, "--stop-running", help="Jobs that do not end before wait again when it begins."
    ),
    every: str = typer.Option("", "--every", help="Repeat: 12h, 1d, 1w; days keep the local hour."),
    times: int = typer.Option(1, "--times", help="With --every: how many windows, at most 366."),
    why: str = WHY,
    address: str | None = ADDRESS,
    form: str = FORMAT,
) -> int:
    """Reserve cards; jobs that do not end before are kept off them, and their reasons say so."""
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster.controller.orders import Window

    if not 0 < hours <= 8784:
        raise JoyError(f"--hours is {hours:g}", help="above 0 and at most 8784, a year")
    nodes = tuple(dict.fromkeys(word.strip() for word in node.split(",") if word.strip()))
    if bool(nodes) == bool(cards):
        raise JoyError("say either --node or --cards", help="--node n1,n2, or --cards 8 --pods 2")
    if nodes and (kind or pods != 1):
        raise JoyError("--kind and --pods go with --cards", help="--node reserves whole nodes")
    shape = None
    if cards:
        item = {"name": name, "kind": [kind] if kind else [], "pods": pods, "cards_per_pod": cards}
        shape = work.from_data({"jobs": [item]}, "--kind, --pods, --cards").jobs[0]
    begin = moment(start, time.time())
    again = list_repeats(begin, every, times, hours)
    window = Window(name, begin, begin + hours * 3600, queue, nodes, shape, stop, again)
    return give(address, form, "reserve", window=window, why=why)


def show(address: str | None = ADDRESS, form: str = FORMAT) -> int:
    """Show the reservations that are not over: when, which cards, for whom."""
    from joymigrate.report import cluster as report

    one_of(form, ("text", "json"), "--format")
    data = ask(address, "reservations")
    text = json.dumps(data, ensure_ascii=False, indent=2) + "\n"
    emit(text if form == "json" else report.reservations(data["reservations"], time.time()))
    return Exit.OK


def cancel(
    name: str = NAME, why: str = WHY, address: str | None = ADDRESS, form: str = FORMAT
) -> int:
    """Give the cards of a reservation back."""
    from joymigrate.run.cluster.controller.orders import Window

    return give(address, form, "unreserve", window=Window(name), why=why)


UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def list_repeats(begin: float, every: str, times: int, hours: float) -> tuple[float, ...]:
    """The beginnings after the first one; whole days keep the hour of the local clock."""
    from joymigrate.run.cluster.calendar import MOST_TIMES

    if bool(every) != (times != 1) or not 1 <= times <= MOST_TIMES:
        raise JoyError(
            f"--every '{every}' with --times {times}",
            help=f"both or neither: --every 1d --times 7 (at most {MOST_TIMES})",
        )
    if not every:
        return ()
    try:
        step = float(every[:-1]) * UNITS[every[-1]]
    except (ValueError, KeyError) as error:
        raise JoyError(f"--every is '{every}'", help="12h, 1d or 1w") from error
    if not hours * 3600 <= step <= 366 * 86400:
        raise JoyError(f"--every {every} is shorter than --hours {hours:g}, or above a year")
    if step % UNITS["d"]:
        return tuple(begin + number * step for number in range(1, times))
    first = datetime.fromtimestamp(begin)  # without a zone: the clock on the wall
    return tuple(
        (first + timedelta(seconds=number * step)).timestamp() for number in range(1, times)
    )


def moment(text: str, now: float) -> float:
    """Seconds since 1970 from `now`, `+2h`, or a date and time (local time without a zone)."""
    wanted = text.strip()
    if wanted == "now":
        return now
    try:
        if wanted.startswith("+"):
            later = float(wanted[1:-1]) * UNITS[wanted[-1]]
            if not 0 <= later < float("inf"):
                raise ValueError(text)
            return now + later
        return datetime.fromisoformat(wanted.replace("Z", "+00:00")).timestamp()
    except (ValueError, KeyError, IndexError, OverflowError, OSError) as error:
        raise JoyError(
            f"--start is '{text}'", help="2026-12-01T08:00, now, +90m, +12h or +2d"
        ) from error
