"""The operator's commands of `cluster`: nodes, cards, waiting jobs, quotas, history and use."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._groups import group
from joymigrate.cli._output import user
from joymigrate.errors import JoyError

ADDRESS = typer.Option(None, "--address", help="Ray cluster; default: RAY_ADDRESS, else local.")
WHY = typer.Option("", "--why", help="A reason, for those who ask later.")


def refuse_empty(name: str) -> str:
    """A name as it is given; an empty one is a slip of a script."""
    if not name.strip():
        raise JoyError("a name is empty", help="joymigrate cluster status shows names")
    return name


NODE = typer.Argument(
    ..., help="A node's name, as `cluster status` says it.", callback=refuse_empty
)
JOB = typer.Argument(..., help="A job's name.", callback=refuse_empty)
LINES = typer.Option(200, "--lines", help="How many of the last lines; 0: all.", min=0)

cards_app = group("Take cards out of use and back.")
quota_app = group("Look at the queues' limits, compare others, and put them into force.")


def register(app: typer.Typer) -> None:
    """Add the commands to `cluster`."""
    for command in (cordon, drain, undrain, hold, release, requeue, priority, history):
        app.command(command.__name__)(command)
    app.command("why")(explain)
    app.command("exec", context_settings={"ignore_unknown_options": True})(execute)
    cards_app.command("fail")(fail)
    cards_app.command("heal")(heal)
    quota_app.command("show")(quota_show)
    quota_app.command("diff")(quota_diff)
    quota_app.command("apply")(quota_apply)
    app.add_typer(cards_app, name="cards")
    app.add_typer(quota_app, name="quota")


def ask(address: str | None, method: str, *arguments: Any) -> Any:
    """The controller's answer."""
    from joymigrate.run.cluster.on_ray import connect

    return connect.ControllerClient(connect.attach(address)).ask(method, *arguments)


def give(address: str | None, verb: str, **more: Any) -> Answer:
    """Give an order and say what it did."""
    from joymigrate.run.cluster.controller.orders import ClusterOrder

    return effect(ask(address, "order", ClusterOrder(verb, user(), time.time(), **more)))


def effect(answer: dict[str, Any]) -> Answer:
    """What an order did at once."""
    moved = [f"{name}: {word}\n" for word in ("stopped", "started") for name in answer[word]]
    return Answer(answer, "".join([*moved, f"Done: {answer['order']}.\n"]))


@answers("order")
def cordon(node: str = NODE, why: str = WHY, address: str | None = ADDRESS) -> Answer:
    """Let nothing new start on a node; what runs there runs on."""
    return give(address, "cordon", node=node, why=why)


@answers("order")
def drain(node: str = NODE, why: str = WHY, address: str | None = ADDRESS) -> Answer:
    """Let nothing new start on a node, and send its gangs back to wait for other cards."""
    return give(address, "drain", node=node, why=why)


@answers("order")
def undrain(node: str = NODE, address: str | None = ADDRESS) -> Answer:
    """Let a drained or cordoned node take work again."""
    return give(address, "undrain", node=node)


@answers("order")
def fail(
    node: str = NODE,
    ids: str = typer.Argument(..., help="Card ids: 3 or 0,1,2."),
    why: str = WHY,
    address: str | None = ADDRESS,
) -> Answer:
    """Take cards out of use; the gangs on them wait again."""
    return give(address, "fail", node=node, cards=card_ids(ids), why=why)


@answers("order")
def heal(
    node: str = NODE,
    ids: str = typer.Argument("", help="Card ids; default: all failed ones of the node."),
    address: str | None = ADDRESS,
) -> Answer:
    """Take failed cards into use again."""
    return give(address, "heal", node=node, cards=card_ids(ids))


def card_ids(text: str) -> tuple[int, ...]:
    """Ids from `0,1,2`."""
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError as error:
        raise JoyError(f"'{text}' is no list of card ids", help="for example 0,1,2") from error


@answers("order")
def hold(job: str = JOB, why: str = WHY, address: str | None = ADDRESS) -> Answer:
    """Keep a waiting job from starting until it is released."""
    return give(address, "hold", job=job, why=why)


@answers("order")
def release(job: str = JOB, address: str | None = ADDRESS) -> Answer:
    """Let a held job wait for cards again."""
    return give(address, "release", job=job)


@answers("order")
def requeue(
    job: str = JOB,
    keep: bool = typer.Option(False, "--hold", help="Hold it, so that it does not start again."),
    why: str = WHY,
    address: str | None = ADDRESS,
) -> Answer:
    """Stop a running job and let it wait again, in its place in line."""
    return give(address, "requeue", job=job, why=why, hold=keep)


@answers("order")
def priority(
    job: str = JOB,
    value: int = typer.Argument(..., help="The new priority; higher goes first."),
    address: str | None = ADDRESS,
) -> Answer:
    """Give a waiting or running job another priority."""
    return give(address, "priority", job=job, priority=value)


def execute(
    job: str = JOB,
    command: list[str] = typer.Argument(..., help="After `--`: what is run."),
    rank: int = typer.Option(0, "--rank", help="Beside which pod.", min=0),
    limit: float = typer.Option(60.0, "--timeout", help="Seconds until it is killed."),
    address: str | None = ADDRESS,
) -> int:
    """Run a command beside a pod of a running job, in its environment: nvidia-smi, py-spy, ls."""
    import sys

    if not limit > 0:
        raise JoyError(f"--timeout is {limit:g}", help="seconds above 0")
    code, output = ask(address, "execute", job, rank, command, limit, user())
    sys.stdout.buffer.write(output)
    sys.stdout.flush()
    return int(code)


@answers("reason")
def explain(job: str = JOB, address: str | None = ADDRESS) -> Answer:
    """Say why a job waits, what is enough for it to start, and when that will be."""
    from joymigrate.report import cluster as report

    data = ask(address, "explain", job)
    return Answer(data, report.reason(data))


@answers("history")
def history(
    job: str = typer.Argument("", help="A job's name; default: everything."),
    lines: int = LINES,
    address: str | None = ADDRESS,
) -> Answer:
    """Show what has happened, when, and who ordered it: the log of the controller."""
    from joymigrate.report import cluster as report

    facts = ask(address, "history", job, lines)
    data = {"schema": "joymigrate.history/1", "facts": facts}
    return Answer(data, report.history(facts))


@answers("quota")
def quota_show(address: str | None = ADDRESS) -> Answer:
    """Show every queue's limits and what it uses of them."""
    from joymigrate.report import cluster as report

    data = ask(address, "quota")
    return Answer(data, report.quotas(data))


@answers("quota-change")
def quota_diff(
    file: Path = typer.Argument(..., help="A file with the other queues, with or without jobs."),
    address: str | None = ADDRESS,
) -> Answer:
    """Say what other queues would change: which keys, who would be stopped, who would start."""
    from joymigrate.report import cluster as report

    data = ask(address, "compare_quotas", queues_of(file))
    return Answer(data, report.quota_change(data), code=bool(data["changes"]))


@answers("order")
def quota_apply(
    file: Path = typer.Argument(..., help="A file with the other queues, with or without jobs."),
    address: str | None = ADDRESS,
) -> Answer:
    """Put the queues of a file into force; `quota diff` says beforehand what that does."""
    return effect(ask(address, "set_quotas", queues_of(file), user()))


def queues_of(file: Path) -> Any:
    """The queues and weights of a jobs file."""
    from joymigrate.run.cluster import jobs as work

    workload = work.load_queues(file)
    if not workload.queues:
        raise JoyError(
            "the file names no queues: all limits would go",
            where=str(file),
            help="to lift the limits, list the queues without `min`, `max` and `deserved`",
        )
    return workload
