"""Slurm: a shell script that submits every job with `sbatch`, cards as generic resources."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from joymigrate.run.cluster import rendezvous
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE, GangJob, PodGroup, Workload
from joymigrate.run.cluster.kubernetes.renderers import RenderedObjects, kind_of, seconds
from joymigrate.run.cluster.notation import split_after
from joymigrate.run.cluster.queues import Queue

NAME = "slurm"
SAYS = frozenset({"time_limit_minutes", "after", "leaf: one", "sp_block", "min_pods"})
END = "END_OF_JOB"


def render(workload: Workload, inventory: Inventory | None, out: RenderedObjects) -> None:
    """One script: limits and nodes as the comments that an administrator needs, then the jobs."""
    lines = ["#!/bin/bash", "# Submits the jobs; each variable job_* gets the number of its job.",
             "set -euo pipefail"]  # fmt: skip
    lines += [f"# {line}" for line in limits(workload.queues, out)]
    lines += [f"# {line}" for line in nodes(inventory)]
    names = {job.name: variable(number) for number, job in enumerate(workload.jobs)}
    for job in sort_by_waiting(workload.jobs):
        lines += ["", *submission(job, names, inventory, out)]
    out.text = "\n".join([*lines, ""])


def variable(number: int) -> str:
    """The shell variable with the number that Slurm gave a job."""
    return f"job_{number}"


def sort_by_waiting(jobs: Sequence[GangJob]) -> list[GangJob]:
    """Jobs behind those that they wait for; a circle stays in the order of the file."""
    left, found, done = list(jobs), [], set[str]()
    known = {job.name for job in jobs}
    while left:
        ready = next(
            (j for j in left if {split_after(a)[1] for a in j.after} & known <= done), left[0]
        )
        left.remove(ready)
        found.append(ready)
        done.add(ready.name)
    return found


def limits(queues: Sequence[Queue], out: RenderedObjects) -> list[str]:
    """Queues as QOS, with MAX by family."""
    found = []
    for queue in queues:
        bounds = {key: value for key, value in queue.max.items() if key != "cards"}
        if len(bounds) < len(queue.max):
            out.note(f"queue {queue.name}: MAX over all cards is not expressible with {NAME}")
        if queue.min or queue.parent:
            out.note(f"queue {queue.name}: MIN and parent are left to the site")
        caps = ",".join(f"gres/{key}={value:g}" for key, value in sorted(bounds.items()))
        limit = f" GrpTRES={caps}" if caps else ""
        found.append(f"sacctmgr -i add qos {word(queue.name)} set Priority={queue.priority}{limit}")
    return found


def nodes(inventory: Inventory | None) -> list[str]:
    """Lines for slurm.conf and topology.conf; a node's kind is a feature of it."""
    if inventory is None:
        return []
    families = sorted({node.kind.family for node in inventory.nodes if node.kind.cards})
    found = ["slurm.conf:", f"GresTypes={','.join(families)}"] if families else []
    switches: dict[str, list[str]] = {}
    for node in inventory.nodes:
        gres = f" Gres={node.kind.family}:{node.kind.cards}" if node.kind.cards else ""
        found.append(f"NodeName={word(node.name)}{gres} Feature={word(node.kind.name)}")
        switch = word(node.leaf or node.superpod or "no-leaf")
        switches.setdefault(switch, []).append(word(node.name))
    if [*switches] != ["no-leaf"]:
        found.append("topology.conf:")
        found += [f"SwitchName={name} Nodes={','.join(below)}" for name, below in switches.items()]
        # Without one switch over all, a job can never reach over two of them.
        found.append(f"SwitchName=top Switches={','.join(switches)}")
    return found


def word(name: str) -> str:
    """A name without the signs that Slurm's lists are made of."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)


def submission(
    job: GangJob, names: dict[str, str], inventory: Inventory | None, out: RenderedObjects
) -> list[str]:
    """`job_N=$(sbatch …)` with the script of one job; several tasks are a heterogeneous job."""
    waits = []
    for item in job.after:
        condition, other = split_after(item)
        if other in names:
            waits.append(f"{condition}:${names[other]}")
        else:
            out.note(f"job {job.name}: it waits for {other}, which is not in the file")
    option = f' --dependency="{",".join(waits)}"' if waits else ""
    lines = [f"{names[job.name]}=$(sbatch --parsable{option} <<'{END}'", "#!/bin/bash"]
    for number, task in enumerate(job.tasks):
        lines += ["#SBATCH hetjob"] if number else []
        lines += [f"#SBATCH --{asked}" for asked in options(job, task, inventory, out)]
    if job.image:
        out.note(f"job {job.name}: its image is not rendered, {NAME} has no one way to start it")
    if job.retries:
        out.note(f"job {job.name}: {NAME} starts it again when a node fails, not when it fails")
    if job.priority:
        out.note(f"job {job.name}: `priority` is left to the site's QOS")
    return [*lines, *body(job), END, ")"]


def options(
    job: GangJob, task: PodGroup, inventory: Inventory | None, out: RenderedObjects
) -> list[str]:
    """What one task asks for: a node per pod, with its cards there."""
    kind = kind_of(job, task, inventory)
    elastic = 0 < job.min_pods < job.pods
    found = [
        f"job-name={word(job.name)}",
        f"nodes={f'{job.min_pods}-' if elastic else ''}{task.pods}",
        "ntasks-per-node=1",
    ]
    if kind is not None:
        model = f":{word(task.models[0]).lower()}" if len(task.models) == 1 else ""
        found.append(f"gres={kind.family}{model}:{task.cards}")
        if task.pods > 1 and task.cards * 2 <= kind.cards:
            out.note(f"job {job.name}: every pod gets a node of its own with {NAME}")
    if task.kinds:
        found.append(f'constraint="{"|".join(word(name) for name in task.kinds)}"')
        out.note(f"{NAME}: nodes must carry their kind as a feature (given with --inventory)")
    if task.cpu_milli:
        found.append(f"cpus-per-task={-(-task.cpu_milli // 1000)}")
    if task.memory_mib:
        found.append(f"mem={task.memory_mib}M")
    if job.queue != DEFAULT_QUEUE:
        found.append(f"qos={word(job.queue)}")
    if job.time_limit is not None:
        found.append(f"time={-(-seconds(job) // 60)}")
    elif job.minutes is not None:
        out.note(f"job {job.name}: `minutes` is not said, {NAME} would end the job then")
    if job.leaf == "one" and task.pods > 1:
        found.append("switches=1")
    if job.sp_block and task.cards:
        found.append(f"segment={max(1, job.sp_block // task.cards)}")
        out.note(f"job {job.name}: --segment needs topology/block, {NAME} 23.11 or later")
    return found


def body(job: GangJob) -> list[str]:
    """The part that runs: the variables of torch.distributed, and one process per pod."""
    several = len(job.tasks) > 1
    hosts = "SLURM_JOB_NODELIST_HET_GROUP_0" if several else "SLURM_JOB_NODELIST"
    size = str(job.pods) if several else "$SLURM_NTASKS"
    groups = f" --het-group=0-{len(job.tasks) - 1}" if several else ""
    command = shlex.join(job.command) or "true"
    cards = "" if several or not job.tasks[0].cards else str(job.tasks[0].cards)
    port = str(rendezvous.PORT)
    world = rendezvous.variables(size, "$MASTER_ADDR", port, "$SLURM_PROCID", cards or None)
    ranks = [f"{name}={value}" for name, value in world.items() if value == "$SLURM_PROCID"]
    rest = [f"{name}={value}" for name, value in world.items() if value != "$SLURM_PROCID"]
    return [
        f'MASTER_ADDR=$(scontrol show hostnames "${hosts}" | head -n 1)',
        f"export {' '.join(rest)}",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()),
        f"srun{groups} --kill-on-bad-exit=1 bash -c '{' '.join(ranks)} exec \"$@\"' pod {command}",
    ]
