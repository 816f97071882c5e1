"""Plan, simulate and run jobs on a mixed cluster: queues, gangs, topology; Ray and Kubernetes."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import typer

from joymigrate.cli import (
    _cluster_live,
    _cluster_orders,
    _cluster_traffic,
)
from joymigrate.cli._answers import Answer, answers, check_format, format_option, write_answer
from joymigrate.cli._cluster_orders import ADDRESS
from joymigrate.cli._cluster_traffic import read_text, write_manifests
from joymigrate.cli._common_options import OUTPUT
from joymigrate.cli._groups import group
from joymigrate.cli._output import emit, one_of, split, talk, user
from joymigrate.errors import Exit, JoyError
from joymigrate.files import read_json

NEEDS = {
    "submit": ("package:ray",),
    "status": ("package:ray",),
    "cancel": ("package:ray",),
    "logs": ("package:ray",),
    "metrics": ("package:ray",),
    "cordon": ("package:ray",),
    "drain": ("package:ray",),
    "undrain": ("package:ray",),
    "cards fail": ("package:ray",),
    "cards heal": ("package:ray",),
    "hold": ("package:ray",),
    "release": ("package:ray",),
    "requeue": ("package:ray",),
    "priority": ("package:ray",),
    "why": ("package:ray",),
    "exec": ("package:ray",),
    "quota show": ("package:ray",),
    "quota diff": ("package:ray",),
    "quota apply": ("package:ray",),
    "history": ("package:ray",),
    "apply": ("package:kubernetes",),
    "watch": ("package:kubernetes",),
    "admission": ("package:kubernetes",),
    "forecast": ("package:statsmodels",),
}
WANTS = {"validate": {"package:kubernetes-validate": "schemas of core kinds"}}

app = group("Plan, simulate and run jobs on a mixed cluster: queues, gangs, topology.")

INVENTORY = typer.Option(..., "--inventory", help="Nodes and cards: YAML, JSON or a node CSV.")
MANIFEST = typer.Option("yaml", "--format", help="yaml or json.")


@app.command("plan")
@answers("plan")
def plan(
    inventory: Path = INVENTORY,
    jobs: Path = typer.Option(..., "--jobs", help="Jobs and queues (YAML or JSON)."),
    policy: str = typer.Option("topology", "--policy", help="Placement policy."),
) -> Answer:
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
    return Answer(data, report.plan(data))


@app.command("simulate")
@answers("simulation")
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
    jobs: Path | None = typer.Option(None, "--queues", help="A file to take queues from."),
    order: str = typer.Option(
        "response", "--order", help="Jobs of one class: response (short ones pass) or submission."
    ),
    checkpoint: float | None = typer.Option(
        None, "--checkpoint-minutes", help="What a stopped job keeps; default: nothing."
    ),
) -> Answer:
    """Play a trace against the scheduler: allocation, waiting, fragmentation, evictions."""
    from joymigrate.report import cluster_document as simulated
    from joymigrate.run.cluster import inventory as nodes
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster import outcome, policies, traces
    from joymigrate.run.cluster.arrival import offer
    from joymigrate.run.cluster.entries import ORDERS, ClusterSettings
    from joymigrate.run.cluster.simulate import simulate as play

    one_of(order, ORDERS, "--order")
    if seeds < 1 or (arrival is not None and not 0 < arrival <= 10):
        raise JoyError("--seeds is at least 1, --arrival above 0 and at most 10")
    cluster, work_load = nodes.load(inventory), traces.read(trace, trace_format)
    other = None if jobs is None else work.load_queues(jobs)
    queues = other.queues if other else ()
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
        settings = ClusterSettings(order=order)
        run = play(cluster, work_load, name, seed, queues, checkpoint, settings)
        runs.append(run)
        results.append(outcome.simulation_data(run))
    data = outcome.side_by_side(results)
    return Answer(data, lambda: simulated.describe(results, runs, str(inventory), str(trace)))


@app.command("what-if")
@answers("what-if")
def what_if(
    trace: Path = typer.Option(..., "--trace", help="What a cluster has recorded."),
    trace_format: str = typer.Option("sacct", "--trace-format", help="sacct, kubernetes or log."),
    change: Path = typer.Option(..., "--change", help="The queues as they might be."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Nodes and cards, where the record does not say them."
    ),
    jobs: Path | None = typer.Option(
        None, "--queues", help="The queues as they were, where the record does not say them."
    ),
    policy: str = typer.Option("topology", "--policy", help="Placement policy."),
    within: float = typer.Option(
        10.0, "--within", help="Minutes that a replayed start may be off.", min=0
    ),
) -> Answer:
    """Play a recorded past again under other queues: which team waits how much less or more."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster import inventory as nodes
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster import traces
    from joymigrate.run.cluster import what_if as machine

    record = traces.read(trace, trace_format)
    if jobs is not None:
        was = work.load_queues(jobs)
        weights = tuple(was.weights.items())
        record = dataclasses.replace(record, queues=was.queues, weights=weights)
    cluster = record.inventory if inventory is None else nodes.load(inventory)
    if cluster is None:
        raise JoyError(f"a record of {trace_format} says no nodes", help="give --inventory FILE")
    data = machine.ask(record, cluster, work.load_queues(change), policy, within)
    return Answer(data, report.what_if(data))


@app.command("detect")
def detect(
    records: Path | None = typer.Option(
        None, "--from", help="Folder of recorded tool outputs instead of this machine."
    ),
    name: str | None = typer.Option(None, "--name", help="The node's name."),
    network: Path | None = typer.Option(
        None, "--network", help="Leaf, spine and super-pod per node (CSV, YAML, switch list)."
    ),
    append: Path | None = typer.Option(
        None, "--append", help="An inventory to which the node is added."
    ),
    form: str = MANIFEST,
    output: Path | None = OUTPUT,
) -> int:
    """Write the inventory entry of this node: cards, links, NUMA, health."""
    import yaml

    from joymigrate.run.cluster import inventory as nodes
    from joymigrate.run.cluster.detect import node

    one_of(form, ("yaml", "json"), "--format")
    found = node.detect(records, name, node.read_network(network) if network else None)
    if append is not None:
        old = nodes.load(append)
        new = {one.name for one in found.nodes}
        kept = tuple(one for one in old.nodes if one.name not in new)
        found = nodes.Inventory((*kept, *found.nodes), (*old.warnings, *found.warnings))
    talk([f"warning: {text}" for text in found.warnings])
    data = nodes.to_data(found)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    emit(text if form == "yaml" else json.dumps(data, ensure_ascii=False, indent=2) + "\n", output)
    return Exit.OK


@app.command("render")
def render(
    jobs: Path = typer.Argument(..., help="A job or a jobs file."),
    engine: str = typer.Option(
        "volcano",
        "--for",
        help="volcano, kueue, mindcluster, jobset, rayjob, raycluster, pytorchjob, trainjob, "
        "leaderworkerset or slurm.",
    ),
    inventory: Path | None = typer.Option(None, "--inventory", help="Nodes, for the topology."),
    form: str = MANIFEST,
    output: Path | None = OUTPUT,
) -> int:
    """Write jobs and queues for Kubernetes (manifests) or Slurm (a script of sbatch)."""
    from joymigrate.run.cluster import inventory as nodes
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster.kubernetes import renderers

    one_of(form, ("yaml", "json"), "--format")
    cluster = None if inventory is None else nodes.load(inventory)
    made = renderers.render(work.load(jobs), cluster, engine)
    talk([f"note: {text}" for text in made.notes])
    if made.text and form == "json":
        raise JoyError(f"{engine} takes a script, not JSON", help="leave --format out")
    emit(made.text or write_manifests(made.objects, form), output)
    return Exit.OK


@app.command("validate")
@answers("manifests")
def validate(
    files: list[Path] = typer.Argument(..., help="Manifests."),
    crd_dir: Path | None = typer.Option(
        None, "--crd-dir", help="Definitions of your cluster (kubectl get crd -o yaml)."
    ),
) -> Answer:
    """Check manifests: strict schemas (an unknown field is an error) and the webhooks' rules."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster.kubernetes import validate as checking

    found = checking.validate(files, crd_dir)
    data = report.manifest_document(found)
    talk([f"note: {text}" for text in found.notes])
    return Answer(data, report.manifest_text(data), code=bool(found.problems))


@app.command("apply")
def apply(
    files: list[Path] = typer.Argument(..., help="Manifests."),
    context: str | None = typer.Option(None, "--context", help="Context of the kubeconfig."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Let the server check, change nothing."),
    crd_dir: Path | None = typer.Option(None, "--crd-dir", help="Your cluster's definitions."),
    form: str = format_option("applied"),
) -> int:
    """Apply manifests to a Kubernetes cluster, after `validate` found nothing wrong."""
    from joymigrate.run.cluster.kubernetes import apply as applying
    from joymigrate.run.cluster.kubernetes import validate as checking

    documents = [document for path in files for document in checking.read(path)]
    found = checking.check(documents, checking.schemas(crd_dir))
    if found.problems:
        raise JoyError(
            f"{len(found.problems)} problems, the first: {found.problems[0]}",
            help="joymigrate cluster validate FILE names them all",
        )
    check_format(form, "applied")
    done = []
    try:
        for one in applying.apply(documents, context, dry_run):
            done.append(dataclasses.asdict(one))
            if form == "text":
                print(f"{one.name}: {one.outcome}", flush=True)
    finally:  # what is done before a refusal is said, too
        if form != "text":
            write_answer(Answer({"schema": "joymigrate.applied/1", "objects": done}, ""), form)
    return Exit.OK


@app.command("submit")
@answers("cluster")
def submit(
    jobs: Path = typer.Argument(..., help="A job or a jobs file; jobs need a command."),
    address: str | None = ADDRESS,
    policy: str = typer.Option("topology", "--policy", help="Policy, for a cluster's first job."),
    store: Path | None = typer.Option(
        None, "--store", help="Folder on the head node for log and outputs, for the first job."
    ),
    wait: bool | None = typer.Option(
        None, "--wait/--no-wait", help="Wait for the end (always without --address)."
    ),
) -> Answer:
    """Start jobs on Ray: a cluster given by --address, else one inside this command."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster.on_ray import connect, follow

    workload = work.load(jobs)
    embedded = not (address or os.environ.get("RAY_ADDRESS"))
    ray = connect.attach(address, embedded=embedded)
    folder = "" if store is None else str(store.resolve())
    captain = connect.ControllerClient(ray, policy, folder)
    captain.start(dataclasses.replace(workload, jobs=()))
    if folder and captain.ask("folder") != folder:
        raise JoyError(
            f"the log of this cluster lies in {captain.ask('folder')}, not in {folder}",
            help="`--store` counts for a cluster's first job or order: leave it out",
        )
    answer = captain.ask("submit", workload.jobs, user(), uuid4().hex)
    if workload.queues and not embedded:
        talk(unlike_queues(captain, workload, jobs))
    names = [job.name for job in workload.jobs]
    if embedded or wait:
        answer = follow.to_the_end(captain, names, talk)
        if embedded:
            ray.kill(captain.handle)
            ray.shutdown()
    mine = [row for row in answer["jobs"] if row["job"] in names]
    lost = any(row["state"] == "failed" or row.get("permanent") for row in mine)
    return Answer(answer, report.status(answer), code=lost)


def unlike_queues(captain: Any, workload: Any, path: Path) -> list[str]:
    """A note where the queues of a submitted file are not those that are in force."""
    queues = dataclasses.replace(workload, jobs=())
    try:
        change = captain.ask("compare_quotas", queues)
    except JoyError:  # they could not be put into force
        change = {"changes": True}
    if not change["changes"]:
        return []
    help_ = f"joymigrate cluster quota diff {path} says how they differ"
    return [f"note: the queues of this file are not those in force, which stay: {help_}"]


@app.command("status")
@answers("cluster")
def status(address: str | None = ADDRESS) -> Answer:
    """Show the jobs and nodes of a Ray cluster: who runs where, who waits and why."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster.on_ray import connect

    answer = connect.ControllerClient(connect.attach(address)).ask("status")
    return Answer(answer, report.status(answer))


@app.command("cancel")
@answers("order")
def cancel(job: str = _cluster_orders.JOB, address: str | None = ADDRESS) -> Answer:
    """Stop a job on a Ray cluster for good."""
    from joymigrate.run.cluster.on_ray import connect

    before = connect.ControllerClient(connect.attach(address)).ask("cancel", job, user())
    data = {"schema": "joymigrate.order/1", "order": "cancel", "stopped": [job], "started": []}
    return Answer({**data, "was": before}, f"{job}: was {before}\n")


@app.command("logs")
@answers("logs")
def logs(
    job: str = _cluster_orders.JOB,
    address: str | None = ADDRESS,
    lines: int = typer.Option(200, "--lines", help="How many of the last lines per pod.", min=1),
    whole: bool = typer.Option(False, "--all", help="All that is kept, from the beginning."),
    attempt: int = typer.Option(
        0, "--attempt", help="An earlier start; default: the last one.", min=0
    ),
) -> Answer:
    """Show the output of every pod of a job on a Ray cluster: its last lines, or all of it."""
    from joymigrate.run.cluster.on_ray import connect, follow

    captain = connect.ControllerClient(connect.attach(address))
    if whole:
        pods = follow.whole(captain, job, attempt)
    else:
        pods = captain.ask("logs", job, lines, attempt)
    text = "".join(f"[{rank}] {line}\n" for rank, pod in enumerate(pods) for line in pod)
    listed = [{"rank": rank, "lines": pod} for rank, pod in enumerate(pods)]
    return Answer({"schema": "joymigrate.logs/1", "job": job, "pods": listed}, text)


@app.command("metrics")
def metrics(
    address: str | None = ADDRESS,
    listen: str | None = typer.Option(
        None, "--listen", help="Serve at HOST:PORT/metrics instead, for Prometheus and `monitor`."
    ),
) -> int:
    """Print the metrics of a Ray cluster for Prometheus, or serve them."""
    from joymigrate.run.cluster import metrics as exposing
    from joymigrate.run.cluster.on_ray import connect

    captain = connect.ControllerClient(connect.attach(address))

    def page() -> str:
        return exposing.exposition(captain.ask("status", (), False))

    if listen is None:
        emit(page())
        return Exit.OK
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise JoyError(f"--listen is '{listen}'", help="HOST:PORT, for example 127.0.0.1:9400")

    def board() -> str:
        return json.dumps(captain.ask("board"), ensure_ascii=False)

    pages = {"/metrics": page, "/cluster.json": board}
    exposing.serve(host or "127.0.0.1", int(port), pages, lambda text: talk([text]))
    return Exit.OK


@app.command("preflight")
@answers("cluster-check")
def preflight(
    links: Path | None = typer.Option(None, "--links", help="Recorded link states of a node."),
    cards: int | None = typer.Option(None, "--cards", help="How many cards must be in it."),
    ranks: Path | None = typer.Option(None, "--rank-table", help="A rank table (JSON)."),
    plan: Path | None = typer.Option(None, "--plan", help="`cluster plan --format json` output."),
    job: str | None = typer.Option(None, "--job", help="The plan's job the table belongs to."),
) -> Answer:
    """Check links and rank tables before a job starts."""
    from joymigrate.run.cluster import preflight as checking

    if links is None and ranks is None:
        raise JoyError("nothing to check", help="give --links FILE or --rank-table FILE")
    faults: list[Any] = []
    if links is not None:
        faults += checking.links(read_text(links), cards, str(links))
    if ranks is not None:
        pods = read_plan(plan, job) if plan is not None else None
        faults += checking.rank_table(read_json(ranks), pods, str(ranks))
    text = "".join(f"{fault.where}: {fault.what}\n  help: {fault.help}\n" for fault in faults)
    rows = [dataclasses.asdict(fault) for fault in faults]
    data = {"schema": "joymigrate.cluster-check/1", "faults": rows}
    return Answer(data, f"{text}Found {len(faults)} faults.\n", code=bool(faults))


def read_plan(path: Path, job: str | None) -> list[tuple[str, list[int]]]:
    """Nodes and cards of one job of a plan, in rank order."""
    placed = {item["job"]: item["pods"] for item in read_json(path).get("placements") or ()}
    name = job or (next(iter(placed)) if len(placed) == 1 else None)
    if name not in placed:
        raise JoyError(
            f"the plan places {', '.join(placed) or 'nothing'}", where=str(path), help="give --job"
        )
    return [(pod["node"], pod["cards"]) for pod in placed[name]]


_cluster_traffic.register(app)
_cluster_orders.register(app)
_cluster_live.register(app)
