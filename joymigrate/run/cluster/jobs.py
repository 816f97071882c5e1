"""Jobs: what is asked for and by whom; read, with their queues, from YAML or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster import kinds as server_kinds
from joymigrate.run.cluster.inventory import MOST
from joymigrate.run.cluster.notation import split_after, split_command
from joymigrate.run.cluster.queues import Queue, QueueItem, check_limit, queue_of
from joymigrate.schema import DocumentSource, document, load_file, read, setting

LEAF = ("prefer", "one", "fill", "any")
NUMA = ("prefer", "one", "any")
DEFAULT_QUEUE = "default"
RESIZE_MINUTES = 10.0  # of an attempt before it is resized: saving and starting cost about one
GRACE_S = 1.0  # between asking a process to end and making it


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

    @property
    def beside(self) -> str:
        """CPU and memory of one pod, in words."""
        memory = f" and {self.memory_mib / 1024:.4g} GiB" if self.memory_mib else ""
        return f"{self.cpu_milli / 1000:g} CPU cores{memory}"


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """Where one pod runs: node name and card ids."""

    node: str
    cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GangJob:
    """A gang: all pods of all tasks start together or none does.

    `minutes` is how long it runs, None when nobody knows. `sp_block` is the number of cards that
    must lie in one super-pod. `running` says where a job that already runs has its pods.
    `after` are jobs that come before it, as `afterok:NAME`. After `time_limit` minutes it is
    stopped; `grace_s` seconds lie between SIGTERM and SIGKILL whenever it is.
    `user` is who submitted it. With `min_pods` it may run on fewer pods; no attempt of it is given
    another number of pods before `resize_after` minutes.
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
    after: tuple[str, ...] = ()
    time_limit: float | None = None
    grace_s: float = GRACE_S
    user: str = ""
    resize_after: float = RESIZE_MINUTES

    @property
    def pods(self) -> int:
        """Pods of all tasks."""
        return sum(task.pods for task in self.tasks)

    @property
    def elastic(self) -> bool:
        """Whether it may run on fewer pods, as it was submitted."""
        return len(self.tasks) == 1 and 0 < self.min_pods < self.pods

    @property
    def cards(self) -> float:
        """Cards of all pods, counting shares."""
        return sum(task.card_share for task in self.tasks)

    def least_pods(self, task: PodGroup) -> int:
        """The fewest pods of a task that the job runs on."""
        alone = len(self.tasks) == 1 and self.min_pods > 0
        return min(self.min_pods, task.pods) if alone else task.pods


@dataclass(frozen=True, slots=True)
class Workload:
    """A jobs file: jobs in order of submission, queues, weights of kinds, priority classes."""

    jobs: tuple[GangJob, ...]
    queues: tuple[Queue, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskItem:
    """Equal pods as a file says them. What is not given is None."""

    name: str = setting("", "what they are called", words=True)
    kind: tuple[str, ...] = setting(
        (), "accepted server kinds, best first", single=True, words=True
    )
    kinds: tuple[str, ...] = setting((), "the same", single=True, words=True)
    model: tuple[str, ...] = setting((), "accepted models of cards", single=True, words=True)
    models: tuple[str, ...] = setting((), "the same", single=True, words=True)
    pods: int | None = setting(None, "how many pods (default: 1)", least=1, most=MOST)
    cards_per_pod: float | None = setting(
        None, "cards of one pod, or a share of one (default: 1)", least=0, most=1e15
    )
    cpu_per_pod: float | None = setting(None, "cores of one pod", least=0, most=1e15)
    memory_gib_per_pod: float | None = setting(None, "memory of one pod", least=0, most=1e15)
    cpu: float | None = setting(None, "the same as cpu_per_pod", least=0, most=1e15)
    memory_gib: float | None = setting(None, "as memory_gib_per_pod", least=0, most=1e15)

    def __post_init__(self) -> None:
        for name in (*self.kind, *self.kinds):
            server_kinds.get(name, "kind")
        per_pod = 1.0 if self.cards_per_pod is None else self.cards_per_pod
        if per_pod and not round(per_pod * 1000):
            raise JoyError(
                f"cards_per_pod is {per_pod:g}: the smallest share is 0.001 of a card",
                where="cards_per_pod",
            )
        if per_pod > 1 and round((per_pod - int(per_pod)) * 1000):
            raise JoyError(
                f"cards_per_pod is {per_pod}: whole cards, or a share of one card",
                where="cards_per_pod",
                help="use a whole number, or a fraction below 1",
            )

    def pod_group(self, job: TaskItem) -> PodGroup:
        """The pods; kinds and models are the job's where they name none themselves."""
        per_pod = 1.0 if self.cards_per_pod is None else self.cards_per_pod
        cores = self.cpu if self.cpu_per_pod is None else self.cpu_per_pod
        memory = self.memory_gib if self.memory_gib_per_pod is None else self.memory_gib_per_pod
        names = self.kind or self.kinds or job.kind or job.kinds
        return PodGroup(
            pods=self.pods or 1,
            cards=int(per_pod),
            milli=round((per_pod - int(per_pod)) * 1000),
            kinds=tuple(server_kinds.get(name).name for name in names),
            models=self.model or self.models or job.model or job.models,
            cpu_milli=round((cores or 0) * 1000),
            memory_mib=round((memory or 0) * 1024),
            name=self.name or "worker",
        )


@dataclass(frozen=True, slots=True)
class RunningPod:
    """Where one pod of a job already runs."""

    node: str = setting(help="the node's name", words=True)
    cards: tuple[int, ...] = setting(help="its card ids", least=0, most=15)

    def __post_init__(self) -> None:
        if len({*self.cards}) < len(self.cards):
            raise JoyError(
                f"`cards` are different card ids of one node, got {list(self.cards)}",
                where="cards",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobItem(TaskItem):
    """One job as a file says it. Without `tasks` the job itself is its only task."""

    name: str = setting(help="the job's name", words=True)
    queue: str = setting(DEFAULT_QUEUE, "the queue it waits in", words=True)
    priority: int | str = setting(0, "a number, or the name of a class of the file")
    minutes: float | None = setting(None, "how long it runs", least=0, most=1e15)
    tasks: tuple[TaskItem, ...] = setting((), "its pods, where they differ")
    sp_block: int = setting(0, "cards that must lie in one super-pod", least=0, most=MOST)
    superpod: str = setting("hard", "whether sp_block must hold", choices=("hard", "soft"))
    leaf: str = setting("prefer", "how its pods lie under leaf switches", choices=LEAF)
    numa: str = setting("prefer", "how a pod lies on NUMA nodes", choices=NUMA)
    running: tuple[RunningPod, ...] = setting((), "where its pods already run")
    ran_minutes: float = setting(0.0, "how long it has run", least=0, most=1e15)
    command: str | tuple[str, ...] = setting("", "what is started, words or a line", words=True)
    image: str = setting("", "the container's image")
    env: Mapping[str, str] = setting(make=dict, help="environment variables", words=True)
    retries: int = setting(0, "how often it is started again", least=0, most=MOST)
    arrival_minutes: float = setting(0.0, "when it comes, in a trace", least=0, most=1e15)
    arrival_s: float = setting(0.0, "the same, in seconds", least=0, most=1e15)
    min_pods: int = setting(
        0, "it may run on so few of its pods (default: all)", least=0, most=MOST
    )
    resize_after_minutes: float | None = setting(
        None, "with min_pods: it runs so long in one size (default: 10)", least=0, most=1e15
    )
    after: tuple[str, ...] = setting(
        (), "jobs before it: afterok:NAME, afterany:, afternotok:, after:", single=True, words=True
    )
    time_limit_minutes: float | None = setting(
        None, "it is stopped after this time", above=0, most=1e15
    )
    grace_s: float = setting(
        GRACE_S, "seconds between SIGTERM and SIGKILL when it is stopped", least=0, most=86400
    )

    def __post_init__(self) -> None:
        TaskItem.__post_init__(self)
        pods = sum(task.pods or 1 for task in self.tasks) if self.tasks else self.pods or 1
        if self.min_pods > pods:
            raise JoyError(
                f"`min_pods` is {self.min_pods}, more than the job's pods", where="min_pods"
            )
        if 0 < self.min_pods < pods and len(self.tasks) > 1:
            raise JoyError(
                "`min_pods` of a job with several tasks: nobody knows which of them can do without",
                where="min_pods",
                help="leave `min_pods` out, or give the job one kind of pods",
            )
        if self.resize_after_minutes is not None and not 0 < self.min_pods < pods:
            raise JoyError(
                "`resize_after_minutes` of a job that runs on all of its pods",
                where="resize_after_minutes",
                help="`min_pods` below its pods, or leave it out",
            )
        for item in self.after:
            split_after(item)
        for key in PER_TASK if self.tasks else ():
            if getattr(self, key) is not None:
                raise JoyError(
                    f"`{key}` beside `tasks`", where=key, help=f"give each task its own `{key}`"
                )


PER_TASK = ("pods", "cards_per_pod", "cpu_per_pod", "memory_gib_per_pod", "cpu", "memory_gib")


ELSEWHERE = {  # keys that other programs are for
    "array": "many equal jobs: `sbatch --array`, an indexed Job of Kubernetes, or a line each",
    "reservations": "cards for a time: `scontrol create reservation`; for one queue: `reserved`",
}


@document("jobs", "Jobs and queues of a cluster: `--jobs`, `cluster submit`.")
@dataclass(frozen=True, slots=True)
class JobsFile:
    """A jobs file as it stands."""

    jobs: tuple[JobItem, ...] = setting(help="the jobs, in order of submission")
    queues: tuple[QueueItem, ...] = setting((), "the queues")
    weights: Mapping[str, float] = setting(
        make=dict, help="what a card of a kind or family counts in `cards`", least=0, most=1e15
    )
    priorities: Mapping[str, int] = setting(make=dict, help="priority classes by name")

    def __post_init__(self) -> None:
        check_limit("weights", self.weights)
        check_unique("jobs", [job.name for job in self.jobs])
        check_unique("queues", [queue.name for queue in self.queues])
        names = {queue.name for queue in self.queues}
        for number, job in enumerate(self.jobs):
            if names and job.queue not in names and job.queue != DEFAULT_QUEUE:
                raise JoyError(
                    f"job {job.name}: no queue '{job.queue}'.{did_you_mean(job.queue, names)}",
                    where=f"jobs.{number}.queue",
                    help=f"queues: {', '.join(sorted(names))}",
                )


def load(path: Path) -> Workload:
    """Read a jobs file; a mistake in it raises `JoyError` with file, line and item."""
    return from_data(*load_file(path, "jobs"))


def load_queues(path: Path) -> Workload:
    """The queues and weights of a jobs file, or of a file that has nothing else."""
    raw, source = load_file(path, "jobs")
    if isinstance(raw, Mapping) and "queues" in raw:
        raw = {"jobs": [], **raw}
    return replace(from_data(raw, source), jobs=())


def from_data(raw: Any, source: DocumentSource | str = "jobs") -> Workload:
    """A workload from parsed YAML: `jobs`, `queues`, `weights`, `priorities`; or one job."""
    return of_file(read_items(raw, source), source)


def read_items(raw: Any, source: DocumentSource | str = "jobs") -> JobsFile:
    """The items of a jobs file, checked; one job alone is a file of one."""
    if isinstance(raw, Mapping) and "jobs" not in raw and "name" in raw:
        raw = {"jobs": [raw]}
    if isinstance(raw, Mapping):
        found = [raw, *(one for one in raw.get("jobs") or () if isinstance(one, Mapping))]
        for key, where in ELSEWHERE.items():
            if any(key in one for one in found):
                raise JoyError(f"`{key}` is not read here", where=str(source), help=where)
    return read(JobsFile, raw, source, help="see docs/how-to/cluster.md")


def of_file(file: JobsFile, source: DocumentSource | str = "jobs") -> Workload:
    """The workload of a jobs file's items."""
    source = DocumentSource(source) if isinstance(source, str) else source
    jobs: list[GangJob] = []
    for number, item in enumerate(file.jobs):
        try:
            jobs.append(job_of(item, file.priorities))
        except JoyError as error:
            where = source.at(("jobs", number, error.where or ""))
            raise JoyError(error.what, where=where, help=error.help) from None
    check_unique("jobs", [job.name for job in jobs])
    queues = tuple(queue_of(item) for item in file.queues)
    return Workload(tuple(jobs), queues, file.weights, file.priorities)


def job_of(item: JobItem, priorities: Mapping[str, int]) -> GangJob:
    """One job from its item."""
    limit = item.time_limit_minutes
    minutes = limit if item.minutes is None else item.minutes
    return GangJob(
        name=item.name,
        tasks=tuple(task.pod_group(item) for task in item.tasks or (item,)),
        queue=item.queue or DEFAULT_QUEUE,
        priority=priority_of(item.priority, priorities),
        minutes=minutes if limit is None or minutes is None else min(minutes, limit),
        sp_block=item.sp_block,
        superpod=item.superpod,
        leaf=item.leaf,
        numa=item.numa,
        running=tuple(PodAllocation(pod.node, pod.cards) for pod in item.running),
        ran_minutes=item.ran_minutes,
        command=split_command(item.command),
        image=item.image,
        environment=item.env,
        retries=item.retries,
        min_pods=item.min_pods,
        resize_after=(
            RESIZE_MINUTES if item.resize_after_minutes is None else item.resize_after_minutes
        ),
        after=item.after,
        time_limit=limit,
        grace_s=item.grace_s,
    )


def check_unique(what: str, names: Sequence[str]) -> None:
    """Refuse two items of one name."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise JoyError(
                f"two {what} are called '{name}'", where=f"{what}.{number}", help="rename one"
            )
        seen.add(name)


def priority_of(value: int | str, priorities: Mapping[str, int]) -> int:
    """A number, or that of a priority class of the file."""
    if isinstance(value, str) and value not in priorities:
        raise JoyError(
            f"priority {value!r} is neither a whole number nor a class."
            f"{did_you_mean(value, priorities)}",
            where="priority",
            help="declare it under `priorities`",
        )
    return priorities[value] if isinstance(value, str) else value
