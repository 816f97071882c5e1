"""Plan, simulate and run jobs on a mixed cluster: queues, gangs, topology; Ray and Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._groups import group
from joymigrate.cli._output import emit, one_of, split, talk
from joymigrate.errors import Exit, JoyError

app = group("Plan, simulate and run jobs on a mixed cluster: queues, gangs, topology.")

INVENTORY = typer.Option(..., "--inventory", help="Nodes and cards: YAML, JSON or a node CSV.")
FORMAT = typer.Option("text", "--format", help="text or json.")
OUTPUT = typer.Option(None, "-o", "--output", help="Write here instead of to stdout.")


def show(data: dict[str, Any], form: str, text: str, output: Path | None) -> None:
    """Write a result as JSON or as text."""
    one_of(form, ("text", "json"), "--format")
    emit(json.dumps(data, ensure_ascii=False, indent=2) + "\n" if form == "json" else text, output)


@app.command("plan")
def plan(
    inventory: Path = INVENTORY,
    jobs: Path = typer.Option(..., "--jobs", help="Jobs and queues (YAML or JSON)."),
    policy: str = typer.Option("topology", "--policy", help="Placement policy."),
    form: str = FORMAT,
    output: Path | None = OUTPUT,
) -> int:
    """Say which job gets which cards, which one waits and why. Starts nothing."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster import inventory as nodes
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster import plan as planning
    from joymigrate.run.cluster import policies
    from joymigrate.run.cluster.demand import typical

    workload = work.load(jobs)
    chosen = policies.get(policy, typical(workload.jobs))
    data = planning.plan(nodes.load(inventory), workload, chosen)
    talk([f"warning: {text}" for text in data["warnings"]])
    show(data, form, report.plan(data), output)
    return Exit.OK


@app.command("simulate")
def simulate(
    inventory: Path = INVENTORY,
    trace: Path = typer.Option(..., "--trace", help="Jobs over time."),
    trace_format: str = typer.Option("jobs", "--trace-format", help="openb, philly or jobs."),
    policy: list[str] = typer.Option(["topology"], "--policy", help="One or more policies."),
    arrival: float | None = typer.Option(
        None, "--arrival", help="Offer this many times the cluster's cards; nothing ends."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the drawing."),
    seeds: int = typer.Option(1, "--seeds", help="How many seeds, from --seed on (--arrival)."),
    jobs: Path | None = typer.Option(None, "--queues", help="A jobs file to take queues from."),
    checkpoint: float | None = typer.Option(
        None, "--checkpoint-minutes", help="What a stopped job keeps; default: nothing."
    ),
    form: str = typer.Option("text", "--format", help="text, json or html."),
    output: Path | None = OUTPUT,
) -> int:
    """Play a trace against the scheduler: allocation, waiting, fragmentation, evictions."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster import inventory as nodes
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster import outcome, policies, traces
    from joymigrate.run.cluster.arrival import offer
    from joymigrate.run.cluster.simulate import simulate as play

    one_of(form, ("text", "json", "html"), "--format")
    if seeds < 1 or (arrival is not None and not 0 < arrival <= 10):
        raise JoyError("--seeds is at least 1, --arrival above 0 and at most 10")
    cluster, work_load = nodes.load(inventory), traces.read(trace, trace_format)
    queues = () if jobs is None else work.load(jobs).queues
    results: list[dict[str, Any]] = []
    runs = []
    for name in split(policy):
        policies.get(name)
        if arrival is not None:
            tried = [offer(cluster, work_load, name, arrival, seed + i) for i in range(seeds)]
            results.append(outcome.offered_data(tried))
            continue
        if work_load.undated:
            raise JoyError("this trace has no times", where=str(trace), help="use --arrival 1.3")
        run = play(cluster, work_load, name, seed, queues, checkpoint)
        runs.append(run)
        results.append(outcome.simulation_data(run))
    data = outcome.side_by_side(results)
    if form == "html":
        from joymigrate.report.html import cluster as html

        emit(html.render(results, runs, str(inventory), str(trace)), output)
        return Exit.OK
    show(data, form, report.simulations(results), output)
    return Exit.OK
