"""Jobs and queues: what is asked for, by whom, under which limits; read from YAML or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.inventory import label, listing, mapping, number, parse, whole

EVICTIONS = ("never", "lower-priority", "over-deserved")
LEAF = ("prefer", "one", "fill", "any")
NUMA = ("prefer", "one", "any")
DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Equal pods of a job: `pods` times `cards` cards (or `milli` thousandths of one card).

    `kinds` are the accepted server kinds in order of preference (empty: any); `models` the
    accepted card models (empty: any). CPU is in thousandths of a core, memory in MiB, per pod.
    """

    pods: int
    cards: int
    milli: int = 0
    kinds: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    name: str = field(default="worker", compare=False)  # tasks alike but for it are one request

    @property
    def card_share(self) -> float:
        """Cards of all pods, counting shares."""
        return self.pods * (self.cards + self.milli / 1000)


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """Where one pod runs: node name and card ids."""

    node: str
    cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A gang: all pods of all tasks start together or none does.

    `minutes` is how long it runs, None when nobody knows. `sp_block` is the number of cards that
    must lie in one super-pod. `running` says where a job that already runs has its pods.
    `preset` names a named parallel plan of the command that the job starts.
    """

    name: str
    tasks: tuple[PodGroup, ...]
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    minutes: float | None = None
    sp_block: int = 0
    superpod: str = "hard"
    leaf: str = "prefer"
    numa: str = "prefer"
    running: tuple[PodAllocation, ...] = ()
    ran_minutes: float = 0.0
    command: tuple[str, ...] = ()
    image: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    retries: int = 0
    min_pods: int = 0

    @property
    def pods(self) -> int:
        """Pods of all tasks."""
        return sum(task.pods for task in self.tasks)

    @property
    def cards(self) -> float:
        """Cards of all pods, counting shares."""
        return sum(task.card_share for task in self.tasks)


@dataclass(frozen=True, slots=True)
class Queue:
    """A share of the cluster. MIN is guaranteed, MAX is how far it may grow.

    `min`, `max` and `deserved` map a kind, a family (`gpu`, …) or `cards` to card-units;
    `cards` is the unified budget over all kinds, weighted. `eviction` says whose jobs may be
    stopped; `min_runtime` (minutes) protects a job that has just started.
    """

    name: str
    min: Mapping[str, float] = field(default_factory=dict)
    max: Mapping[str, float] = field(default_factory=dict)
    deserved: Mapping[str, float] = field(default_factory=dict)
    parent: str = ""
    weight: float = 1.0
    priority: int = 0
    eviction: tuple[str, ...] = ("over-deserved",)
    min_runtime: float = 0.0
    strategy: str = "traverse"


@dataclass(frozen=True, slots=True)
class Workload:
    """A jobs file: jobs in order of submission, queues, weights of kinds, priority classes."""

    jobs: tuple[Job, ...]
    queues: tuple[Queue, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)


JOB_KEYS = [
    "name",
    "kind",
    "kinds",
    "model",
    "models",
    "pods",
    "cards_per_pod",
    "cpu_per_pod",
    "memory_gib_per_pod",
    "queue",
    "priority",
    "minutes",
    "tasks",
    "sp_block",
    "superpod",
    "leaf",
    "numa",
    "running",
    "ran_minutes",
    "command",
    "image",
    "env",
    "retries",
    "arrival_minutes",
    "arrival_s",
    "min_pods",
    "cpu",
    "memory_gib",
]
TASK_KEYS = [
    "name",
    "kind",
    "kinds",
    "model",
    "models",
    "pods",
    "cards_per_pod",
    "cpu_per_pod",
    "memory_gib_per_pod",
    "cpu",
    "memory_gib",
]
INHERITED = ("kind", "kinds", "model", "models")  # of a job, by its tasks
QUEUE_KEYS = [
    "name",
    "min",
    "max",
    "deserved",
    "parent",
    "weight",
    "priority",
    "eviction",
    "min_runtime",
    "min_runtime_minutes",
    "strategy",
]
FILE_KEYS = ["schema", "jobs", "queues", "weights", "priorities"]


def load(path: Path) -> Workload:
    """Read a jobs file; a mistake in it raises `JoyError` with file and item."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JoyError(
            f"cannot read the jobs: {error}", where=str(path), help="name an existing file"
        ) from error
    return from_data(parse(text, str(path)), str(path))


def from_data(raw: Any, where: str = "jobs") -> Workload:
    """A workload from parsed YAML: `jobs`, `queues`, `weights`, `priorities`; or one job."""
    if isinstance(raw, dict) and "jobs" not in raw and "name" in raw:
        raw = {"jobs": [raw]}
    if not isinstance(raw, dict) or not isinstance(raw.get("jobs"), list):
        raise JoyError("a jobs file has a list `jobs`", where=where, help="see docs/cluster.md")
    check_keys(raw, FILE_KEYS, "jobs file", where)
    classes = mapping(raw.get("priorities"), "priorities", where)
    priorities = {str(k): integer(v, f"priorities.{k}", where) for k, v in classes.items()}
    queues = tuple(
        read_queue(item, f"{where}: queues[{number_}]")
        for number_, item in enumerate(listing(raw.get("queues"), "queues", where))
    )
    jobs = tuple(
        read_job(item, priorities, f"{where}: jobs[{number_}]")
        for number_, item in enumerate(raw["jobs"])
    )
    check_unique([job.name for job in jobs], "jobs", where)
    check_unique([queue.name for queue in queues], "queues", where)
    check_queue_names(jobs, queues, where)
    weights = limits(mapping(raw.get("weights"), "weights", where), "weights", where)
    return Workload(jobs, queues, weights, priorities)


def check_unique(names: Sequence[str], what: str, where: str) -> None:
    """Refuse two items of one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise JoyError(f"two {what} are called '{name}'", where=where, help="rename one")
        seen.add(name)


def check_keys(item: Any, known: Iterable[str], what: str, where: str) -> None:
    """Refuse anything but a mapping with known keys."""
    if not isinstance(item, dict):
        raise JoyError(f"a {what} is a mapping, got {item!r}", where=where)
    known = list(known)
    for key in item:
        if key not in known:
            raise JoyError(
                f"unknown key '{key}' of a {what}.{did_you_mean(str(key), known)}",
                where=where,
                help="see docs/cluster.md",
            )


def check_queue_names(jobs: Sequence[Job], queues: Sequence[Queue], where: str) -> None:
    """A job's queue must be one of the file's queues where the file has any."""
    names = {queue.name for queue in queues}
    for job in jobs:
        if names and job.queue not in names and job.queue != DEFAULT_QUEUE:
            raise JoyError(
                f"job {job.name}: no queue '{job.queue}'.{did_you_mean(job.queue, names)}",
                where=where,
                help=f"queues: {', '.join(sorted(names))}",
            )


def read_job(item: Any, priorities: Mapping[str, int], where: str) -> Job:
    """One job from its mapping. Without `tasks` the job itself is its only task."""
    check_keys(item, JOB_KEYS, "job", where)
    if not item.get("name"):
        raise JoyError("a job needs a name", where=where)
    tasks = read_tasks(item, where)
    min_pods = whole(item.get("min_pods", 0), "min_pods", where)
    if min_pods > sum(task.pods for task in tasks):
        raise JoyError(f"`min_pods` is {min_pods}, more than the job's pods", where=where)
    if 0 < min_pods < sum(task.pods for task in tasks):
        raise JoyError(
            f"`min_pods` is {min_pods} of {sum(task.pods for task in tasks)} pods: "
            "a job starts with all of its pods or not at all",
            where=where,
            help="leave `min_pods` out, or ask for fewer `pods`",
        )
    return Job(
        name=label(item["name"], "name", where),
        tasks=tasks,
        queue=label(item.get("queue"), "queue", where) or DEFAULT_QUEUE,
        priority=read_priority(item.get("priority", 0), priorities, where),
        minutes=None if item.get("minutes") is None else number(item["minutes"], "minutes", where),
        sp_block=whole(item.get("sp_block", 0), "sp_block", where),
        superpod=one_of(item, "superpod", ("hard", "soft"), where),
        leaf=one_of(item, "leaf", LEAF, where),
        numa=one_of(item, "numa", NUMA, where),
        running=tuple(
            read_held(pod, f"{where}.running[{i}]")
            for i, pod in enumerate(listing(item.get("running"), "running", where))
        ),
        ran_minutes=number(item.get("ran_minutes", 0), "ran_minutes", where),
        command=words(item.get("command"), where),
        image=str(item.get("image") or ""),
        environment={str(k): str(v) for k, v in mapping(item.get("env"), "env", where).items()},
        retries=whole(item.get("retries", 0), "retries", where),
        min_pods=min_pods,
    )


def read_tasks(item: Mapping[str, Any], where: str) -> tuple[PodGroup, ...]:
    """The tasks of a job; they accept the job's kinds and models unless they name their own."""
    tasks = listing(item.get("tasks"), "tasks", where)
    if not tasks:
        return (read_task({key: item[key] for key in TASK_KEYS if key in item}, where),)
    for key in TASK_KEYS:
        if key in item and key not in ("name", *INHERITED):
            raise JoyError(
                f"`{key}` beside `tasks`", where=where, help=f"give each task its own `{key}`"
            )
    found: list[PodGroup] = []
    for index, task in enumerate(tasks):
        place = f"{where}.tasks[{index}]"
        check_keys(task, TASK_KEYS, "task", place)
        found.append(read_task({**inherited(item, task), **task}, place))
    return tuple(found)


def inherited(job: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """What a task takes over from its job: kinds and models, where it names none itself."""
    taken: dict[str, Any] = {}
    for pair in (INHERITED[:2], INHERITED[2:]):
        if not any(key in task for key in pair):
            taken |= {key: job[key] for key in pair if key in job}
    return taken


def words(command: Any, where: str) -> tuple[str, ...]:
    """A command's words: a list, or a line with a shell's quotes."""
    if not isinstance(command, str):
        return tuple(map(str, listing(command, "command", where)))
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise JoyError(f"`command` {command!r}: {error}", where=where) from error


def read_held(item: Any, where: str) -> PodAllocation:
    """Where one pod runs, from `{node, cards}`."""
    check_keys(item, ("node", "cards"), "running pod", where)
    if "node" not in item or "cards" not in item:
        raise JoyError("a running pod needs `node` and `cards`", where=where)
    ids = tuple(whole(card, "cards", where) for card in listing(item["cards"], "cards", where))
    if any(card > 15 for card in ids) or len(set(ids)) < len(ids):
        raise JoyError(f"`cards` are different card ids of one node, got {list(ids)}", where=where)
    return PodAllocation(label(item["node"], "node", where), ids)


def integer(value: Any, key: str, where: str) -> int:
    """A whole number of any sign; anything else raises `JoyError`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise JoyError(f"`{key}` is a whole number, got {value!r}", where=where)
    return value


def one_of(item: Mapping[str, Any], key: str, known: tuple[str, ...], where: str) -> str:
    """The value of `key`, which must be one of `known` (the first is the default)."""
    value = str(item.get(key) or known[0])
    if value not in known:
        raise JoyError(
            f"`{key}` is '{value}'.{did_you_mean(value, known)}",
            where=where,
            help=f"one of {', '.join(known)}",
        )
    return value


def read_priority(value: Any, priorities: Mapping[str, int], where: str) -> int:
    """A number, or the name of a priority class of the file."""
    if isinstance(value, str) and value in priorities:
        return priorities[value]
    if isinstance(value, bool) or not isinstance(value, int):
        raise JoyError(
            f"priority {value!r} is neither a whole number nor a class."
            f"{did_you_mean(str(value), priorities)}",
            where=where,
            help="declare it under `priorities`",
        )
    return value


def read_task(item: Mapping[str, Any], where: str) -> PodGroup:
    """Equal pods from their mapping; a share of a card is a fraction in `cards_per_pod`."""
    check_keys(item, TASK_KEYS, "task", where)
    per_pod = number(item.get("cards_per_pod", 1), "cards_per_pod", where)
    cards = int(per_pod)
    milli = round((per_pod - cards) * 1000)
    if per_pod and not cards and not milli:
        raise JoyError(
            f"cards_per_pod is {per_pod:g}: the smallest share is 0.001 of a card", where=where
        )
    if cards and milli:
        raise JoyError(
            f"cards_per_pod is {per_pod}: whole cards, or a share of one card",
            where=where,
            help="use a whole number, or a fraction below 1",
        )
    pods = whole(item.get("pods", 1), "pods", where)
    if not pods:
        raise JoyError("a job has at least one pod", where=where)
    cpu = item.get("cpu_per_pod", item.get("cpu", 0)) or 0
    memory = item.get("memory_gib_per_pod", item.get("memory_gib", 0)) or 0
    return PodGroup(
        pods=pods,
        cards=cards,
        milli=milli,
        kinds=tuple(kinds.get(name, where).name for name in names_of(item, "kind", "kinds", where)),
        models=names_of(item, "model", "models", where),
        cpu_milli=round(number(cpu, "cpu_per_pod", where) * 1000),
        memory_mib=round(number(memory, "memory_gib_per_pod", where) * 1024),
        name=str(item.get("name") or "worker"),
    )


def names_of(item: Mapping[str, Any], one: str, many: str, where: str) -> tuple[str, ...]:
    """The names under `one` (a name or a list) or `many`, in order."""
    value = item.get(one) or item.get(many) or []
    names = value if isinstance(value, list) else [value]
    return tuple(label(name, one, where) for name in names)


def read_queue(item: Any, where: str) -> Queue:
    """One queue from its mapping."""
    check_keys(item, QUEUE_KEYS, "queue", where)
    if not item.get("name"):
        raise JoyError("a queue needs a name", where=where)
    raw = item.get("eviction") or "over-deserved"
    eviction = tuple(
        str(value).replace("_", "-").replace(" ", "-")
        for value in (raw if isinstance(raw, list) else [raw])
    )
    for value in eviction:
        if value not in EVICTIONS:
            raise JoyError(
                f"queue {item['name']}: eviction '{value}'.{did_you_mean(value, EVICTIONS)}",
                where=where,
                help=f"one of {', '.join(EVICTIONS)}",
            )
    return Queue(
        name=label(item["name"], "name", where),
        min=limits(item.get("min"), "min", where),
        max=limits(item.get("max"), "max", where),
        deserved=limits(item.get("deserved"), "deserved", where),
        parent=label(item.get("parent"), "parent", where),
        weight=number(item.get("weight", 1), "weight", where),
        priority=integer(item.get("priority", 0), "priority", where),
        eviction=eviction,
        min_runtime=number(
            item.get("min_runtime", item.get("min_runtime_minutes", 0)), "min_runtime", where
        ),
        strategy=one_of(item, "strategy", ("traverse", "fifo"), where),
    )


def limits(raw: Any, name: str, where: str) -> dict[str, float]:
    """A limit: a number of cards over all kinds, or a mapping of kind, family or `cards`."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        return {"cards": number(raw, name, where)}
    known = {*kinds.all_kinds(), *families(), "cards"}
    for key in raw:
        if key not in known:
            raise JoyError(
                f"`{name}` on '{key}'.{did_you_mean(str(key), known)}",
                where=where,
                help="it is on a server kind, a family (gpu, …) or `cards`",
            )
    return {str(key): number(value, f"{name}.{key}", where) for key, value in raw.items()}


def families() -> set[str]:
    """Families of accelerators that limits can name."""
    return {kind.family for kind in kinds.all_kinds().values()}
