"""Recorded pasts of Slurm, Kueue, Volcano and our own log, played again under other queues."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.report import cluster as report
from joymigrate.run.cluster import traces, what_if
from joymigrate.run.cluster.controller.ledger import LogFact
from joymigrate.run.cluster.controller.store import LogStore
from joymigrate.run.cluster.jobs import Workload
from joymigrate.run.cluster.traces import JobTrace
from tests.run.cluster.cases import job, nodes, queue

ONE = "[{name: a, kind: gpu-8}]"
HEAD = "JobID|Account|Submit|Eligible|Start|End|State|NNodes|TimelimitRaw|ReqTRES"
HOUR = 3600


def clock(minutes: float) -> str:
    hours, rest = divmod(int(minutes), 60)
    return f"2026-05-{1 + hours // 24:02}T{hours % 24:02}:{rest:02}:00"


def slurm(*rows: tuple[Any, ...]) -> str:
    """Rows of job, account, minutes of submission, start and end, cards and state."""
    lines = [HEAD]
    for name, account, submit, start, end, cards, state in rows:
        times = [clock(submit), clock(submit)]
        times += ["Unknown" if one is None else clock(one) for one in (start, end)]
        lines.append("|".join([
            name, account, *times, state, "1", "600", f"billing=8,cpu=8,gres/gpu={cards},node=1",
        ]))  # fmt: skip
    return "\n".join(lines) + "\n"


def two_teams(count: int = 12) -> str:
    """One node: every two hours a job of each team comes, and the second waits for the first."""
    rows: list[tuple[Any, ...]] = []
    for i in range(count):
        at = i * 120
        rows.append((f"{i}1", "red", at, at, at + 60, 8, "COMPLETED"))
        rows.append((f"{i}2", "blue", at + 10, at + 60, at + 110, 8, "COMPLETED"))
    return slurm(*rows)


def read(tmp_path: Path, text: str, form: str) -> JobTrace:
    path = tmp_path / "record"
    path.write_text(text)
    return traces.read(path, form)


def asked(trace: JobTrace, *queues: Any, cluster: str = ONE) -> dict[str, Any]:
    found = trace.inventory if trace.inventory is not None else nodes(cluster)
    return what_if.ask(trace, found, Workload((), queues), "topology", 10)


def team(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in data["teams"] if one["team"] == name)


def test_a_row_of_sacct_is_a_job(tmp_path: Path) -> None:
    text = slurm(
        ("1", "red", 0, 5, 65, 16, "COMPLETED"),
        ("1.batch", "red", 0, 5, 65, 16, "COMPLETED"),
        ("2_[3-9]", "blue", 10, None, None, 8, "PENDING"),
        ("3", "blue", 20, 30, 30, 8, "CANCELLED by 1000"),
        ("3", "blue", 30, 40, None, 8, "RUNNING"),
        ("4", "blue", 40, 40, 50, 0, "COMPLETED"),
    ).replace("|1|600|billing=8,cpu=8,gres/gpu=16", "|2|1-02:30:00|cpu=8,gres/gpu:h100=16")
    trace = read(tmp_path, text, "sacct")
    first, waiting, gone, runs = trace.arrivals
    assert [one.job.name for one in trace.arrivals] == ["1", "2_[3-9]", "3", "3#2"]
    (task,) = first.job.tasks
    assert (task.pods, task.cards, task.models, task.kinds) == (2, 8, ("h100",), ())
    assert (first.job.minutes, first.waited, first.seconds) == (26.5 * 60, 300.0, HOUR)
    assert (waiting.waited, gone.waited, runs.waited) == (None, None, 600.0)
    assert (gone.seconds, runs.seconds) == (10 * HOUR, 10 * HOUR), "their time limit"
    assert [(one.job, one.at - gone.at) for one in trace.events] == [("3", 600.0)]
    (note,) = trace.notes
    assert note.startswith("1 jobs asked for no card (gpu/")


def test_only_cards_of_a_record_are_cards_and_only_jobs_are_jobs(tmp_path: Path) -> None:
    row = slurm(("1", "lab.a", 0, 5, 65, 8, "COMPLETED")).replace("=8,node", "=8,gres/nvme=1,node")
    disk = slurm(("2", "b", 0, 5, 65, 200, "COMPLETED")).replace("gres/gpu", "gres/tmpdisk")
    rows = [HEAD, row.splitlines()[1], disk.splitlines()[1]]
    turned = ["|".join([*cells[1:], cells[0]]) for cells in (one.split("|") for one in rows)]
    for text in ("\n".join(rows), "\n".join(turned)):  # the account has a dot, and may come first
        (one,) = read(tmp_path, text, "sacct").arrivals
        assert (one.job.name, one.job.queue, one.job.cards) == ("1", "lab.a", 8)


def test_the_zone_of_a_time_counts(tmp_path: Path) -> None:
    """Over a change of summer time local times alone go backwards."""
    text = f"{HEAD}\n1|a|{{0}}+0200|{{0}}+0200|{{0}}+0200|{{1}}+0100|COMPLETED|1|600|gres/gpu=8\n"
    times = ("2026-10-25T02:50:00", "2026-10-25T02:10:00")
    (one,) = read(tmp_path, text.format(*times), "sacct").arrivals
    assert one.seconds == 20 * 60
    with pytest.raises(JoyError) as caught:
        read(tmp_path, re.sub(r"\+0.00", "", text).format(*times), "sacct")
    assert "SLURM_TIME_FORMAT=%s" in str(caught.value.help)


@pytest.mark.parametrize("eligible", [10, 40])
def test_a_job_taken_back_before_it_could_start_holds_no_cards(
    tmp_path: Path, eligible: float
) -> None:
    gone = slurm(("gone", "red", 10, None, 10 if eligible == 10 else 30, 8, "CANCELLED by 7"))
    row = gone.splitlines()[1].replace(f"{clock(10)}|{clock(10)}", f"{clock(10)}|{clock(eligible)}")
    trace = read(tmp_path, f"{two_teams()}{row}\n", "sacct")
    assert "gone" not in [one.job.name for one in trace.arrivals]
    assert trace.notes == ("1 jobs were taken back before they could start: left out",)


def test_jobs_that_never_started_in_the_record_make_no_difference(tmp_path: Path) -> None:
    """The replay's error says nothing of them."""
    rows = [(f"{i}", "red", i * 15, i * 15, i * 15 + 10, 8, "COMPLETED") for i in range(12)]
    rows.append(("long", "red", 200, 200, 500, 8, "COMPLETED"))
    rows += [(f"c{i}", "red", 210, None, 810, 1, "CANCELLED by 7") for i in range(8)]
    trace = read(tmp_path, slurm(*rows), "sacct")
    trace = dataclasses.replace(trace, queues=(queue("red", max=8),))
    red = team(
        asked(trace, queue("red", max=16), cluster="[{name: a, kind: gpu-8, count: 2}]"), "red"
    )
    assert (red["judged"], red["error_mean_min"], red["difference_min"]) == (13, 0, None)
    assert red["replayed_min"] == red["changed_min"] == 0


def test_jobs_wait_from_when_slurm_lets_them_start(tmp_path: Path) -> None:
    text = slurm(("1", "red", 0, 90, 100, 8, "COMPLETED"))
    row = text.replace(f"{clock(0)}|{clock(0)}", f"{clock(0)}|{clock(60)}")
    (one,) = read(tmp_path, row, "sacct").arrivals
    assert one.waited == 30 * 60


def test_two_names_of_cards_are_two_families(tmp_path: Path) -> None:
    rows = slurm(("1", "r", 0, 0, 9, 8, "COMPLETED"), ("2", "r", 0, 0, 9, 8, "COMPLETED"))
    head, first, second = rows.splitlines()
    second = second.replace("gres/gpu", "gres/npu")
    trace = read(tmp_path, "\n".join([head, first, second]), "sacct")
    gpu, npu = (one.job.tasks[0].kinds for one in trace.arrivals)
    assert "gpu-8" in gpu
    assert "ascend-910b-8" in npu
    assert not {*gpu} & {*npu}


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("JobID|State\n1|COMPLETED\n", "no column Submit, Start, End", 1),
        (f"{HEAD}\n1|a|b\n", "3 columns below 10 heads", 2),
        (f"{HEAD}\n1|a|soon|soon|soon|soon|RUNNING|1|1|gres/gpu=1\n", "not a time: 'soon'", 2),
        (slurm(("1", "r", 60, 0, 9, 8, "COMPLETED")), "job 1 starts before it comes", 2),
    ],
)
def test_a_row_that_is_none_is_named_with_its_line(
    tmp_path: Path, text: str, says: str, line: int
) -> None:
    with pytest.raises(JoyError, match=says) as caught:
        read(tmp_path, text, "sacct")
    assert str(caught.value.where).endswith(f"record:{line}")


def test_a_past_that_is_replayed_exactly_has_no_error_and_says_what_a_change_does(
    tmp_path: Path,
) -> None:
    data = asked(read(tmp_path, two_teams(), "sacct"), queue("red", max=4), queue("blue"))
    red, blue, every = (team(data, name) for name in ("red", "blue", what_if.ALL))
    assert (blue["recorded_min"], blue["replayed_min"], blue["error_p95_min"]) == (50, 50, 0)
    assert (every["judged"], every["within_pct"]) == (24, 100)
    assert (blue["changed_min"], blue["difference_min"]) == (0, -50)
    assert (red["difference_min"], red["not_started"]) == (None, [0, 12])
    assert [one["queue"] for one in data["never_fit"]] == ["red"] * 12
    text = report.what_if(data)
    assert "blue: waits 50.0 minutes less on average" in text
    assert "never fits" in text
    assert "12 of its jobs don't start" in text


def test_a_difference_below_the_error_is_not_said(tmp_path: Path) -> None:
    """In the record blue waited 55 minutes longer than the free cards explain."""
    late = []
    for line in two_teams().splitlines():
        cells = line.split("|")
        if cells[1] == "blue":
            began = int(cells[0][:-1]) * 120 + 115
            cells[4:6] = [clock(began), clock(began + 50)]
        late.append("|".join(cells))
    data = asked(read(tmp_path, "\n".join(late), "sacct"), queue("red", max=4), queue("blue"))
    blue = team(data, "blue")
    assert (blue["error_mean_min"], blue["within_pct"]) == (55, 0)
    assert blue["difference_min"] is None
    assert "smaller than" in blue["unsaid"]
    assert "blue: no difference is said: smaller than the replay's error" in report.what_if(data)


def test_an_error_that_is_not_known_and_one_that_is_infinite_say_no_difference(
    tmp_path: Path,
) -> None:
    few = asked(read(tmp_path, two_teams(3), "sacct"), queue("red", max=4), queue("blue"))
    assert "not known from 3 recorded" in team(few, "blue")["unsaid"]
    trace = read(tmp_path, two_teams(), "sacct")
    none = asked(trace, queue("red"), queue("blue"), cluster="[{name: a, kind: gpu-4}]")
    blue = team(none, "blue")
    assert (blue["error_median_min"], blue["error_mean_min"], blue["within_pct"]) == (None, None, 0)
    assert "never start in the replay" in blue["unsaid"]
    assert any(text.startswith("24 jobs never start") for text in none["notes"])
    report.what_if(none)


def test_a_job_that_was_taken_back_is_taken_back_in_the_replay(tmp_path: Path) -> None:
    text = slurm(
        ("1", "red", 0, 0, 600, 8, "COMPLETED"),
        ("2", "red", 10, None, 20, 8, "CANCELLED by 1000"),
        ("3", "red", 30, 600, 660, 8, "COMPLETED"),
    )
    run = what_if.replay(read(tmp_path, text, "sacct"), nodes(ONE), "topology", "submission")
    assert run.tally.waited == {"1": 0.0, "3": 570 * 60.0}
    assert run.tally.finished["2"] - run.tally.finished["1"] == -580 * 60


def test_a_model_that_no_node_has_is_not_asked_for(tmp_path: Path) -> None:
    text = two_teams().replace("gres/gpu=", "gres/gpu:h100=")
    trace = read(tmp_path, text, "sacct")
    free, notes = what_if.know_models(trace, nodes("[{name: a, kind: gpu-8, model: A100}]"))
    assert free.arrivals[0].job.tasks[0].models == ()
    assert "h100" in notes[0]
    same, notes = what_if.know_models(trace, nodes("[{name: a, kind: gpu-8, model: H100}]"))
    assert same.arrivals[0].job.tasks[0].models == ("H100",)
    assert not notes


def test_a_record_without_starts_is_refused(tmp_path: Path) -> None:
    text = slurm(("1", "red", 0, None, None, 8, "PENDING"))
    with pytest.raises(JoyError, match="no job that started"):
        asked(read(tmp_path, text, "sacct"), queue("red"))


NODE = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {}}, "spec": {},
    "status": {"capacity": {"cpu": "64", "nvidia.com/gpu": "8"},
               "conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip
ASKS = {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "4"}}}]}


def stamp(minutes: float) -> str:
    return f"{clock(minutes)}Z"


def workload(name: str, at: float, spec: dict[str, Any] | None = None, **when: float) -> Any:
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": stamp(minutes)}
        for kind, minutes in when.items()
    ]
    owner = [{"controller": True, "kind": "Job", "name": "train"}]
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": stamp(at),
                     "ownerReferences": owner},
        "spec": {"queueName": "lq", "podSets": [{"name": "main", "count": 2,
                                                 "template": {"spec": ASKS}}], **(spec or {})},
        "status": {"conditions": conditions},
    }  # fmt: skip


def kueue(*workloads: Any) -> str:
    flavor = {"name": "f", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]}
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}
    version = "kueue.x-k8s.io/v1beta2"
    cluster_queue = {"apiVersion": version, "kind": "ClusterQueue", "metadata": {"name": "team"},
                     "spec": {"resourceGroups": [group]}}  # fmt: skip
    local = {"apiVersion": version, "kind": "LocalQueue", "spec": {"clusterQueue": "team"},
             "metadata": {"name": "lq", "namespace": "ml"}}  # fmt: skip
    return json.dumps({"kind": "List", "items": [NODE, cluster_queue, local, *workloads]})


def test_workloads_of_kueue_with_their_conditions(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        kueue(
            workload("a", 0, Admitted=0, Finished=60),
            workload("b", 10, Admitted=60, Finished=90),
            workload("again", 20, Admitted=100, Evicted=80, Finished=130),
            workload("off", 30, {"active": False}, Evicted=40),
            workload("waits", 50),
        ),
        "kubernetes",
    )
    assert [(one.job.name, one.job.queue) for one in trace.arrivals] == [
        (f"ml/{name}", "team") for name in ("a", "b", "again", "off", "waits")
    ]
    assert [one.waited for one in trace.arrivals] == [0, 50 * 60, None, None, None]
    assert [one.seconds for one in trace.arrivals][:3] == [HOUR, 1800, 1800]
    assert [event.job for event in trace.events] == ["ml/off"]
    (task,) = trace.arrivals[0].job.tasks
    assert (task.pods, task.cards) == (2, 4)
    assert trace.inventory is not None
    assert trace.inventory.cards == 8
    assert (trace.queues[0].name, trace.queues[0].max) == ("team", {"gpu": 8})
    data = asked(trace, queue("team", max=4))
    assert team(data, "team")["error_p95_min"] == 0
    assert {one["job"] for one in data["never_fit"]} >= {"ml/a", "ml/b"}


def vcjob(name: str, at: float, *states: tuple[str, float]) -> Any:
    conditions = [{"status": s, "lastTransitionTime": stamp(minutes)} for s, minutes in states]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": stamp(at)},
        "spec": {"queue": "q", "tasks": [{"replicas": 2, "template": {"spec": ASKS}}]},
        "status": {"state": {"phase": states[-1][0] if states else "Pending"},
                   "conditions": conditions},
    }  # fmt: skip


def test_vcjobs_of_volcano_with_their_conditions(tmp_path: Path) -> None:
    volcano_queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
                     "metadata": {"name": "q"}, "spec": {"weight": 1}}  # fmt: skip
    items = [
        NODE, volcano_queue,
        vcjob("a", 0, ("Pending", 0), ("Running", 0), ("Completing", 60), ("Completed", 61)),
        vcjob("b", 10, ("Pending", 10), ("Running", 60), ("Failed", 90)),
        vcjob("c", 20, ("Pending", 20), ("Running", 95), ("Restarting", 99), ("Running", 105)),
        vcjob("d", 30, ("Pending", 30), ("Terminated", 40)),
        vcjob("e", 50),
    ]  # fmt: skip
    trace = read(tmp_path, json.dumps({"items": items}), "kubernetes")
    assert [one.job.name for one in trace.arrivals] == [f"ml/{name}" for name in "abcde"]
    assert [one.waited for one in trace.arrivals] == [0, 50 * 60, None, None, None]
    assert [one.seconds for one in trace.arrivals][:2] == [HOUR, 1800]
    assert [event.job for event in trace.events] == ["ml/d"]
    assert trace.arrivals[0].job.queue == "q"


@pytest.mark.parametrize(
    ("text", "says"),
    [("{}", "not a list of objects"), ('{"items": []}', "no nodes"), ("[", "not valid JSON")],
)
def test_what_is_no_list_of_objects_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(JoyError, match=says):
        read(tmp_path, text, "kubernetes")


def test_our_own_log_with_a_node_that_dies(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = LogStore(folder)
    limits = {"queues": [dataclasses.asdict(queue("q", max=8))], "weights": {}}
    come = {"id": "1", "kind": "gpu-8", "cards": 8, "leaf": "l0"}

    def fact(minutes: float, verb: str, name: str = "", /, **data: Any) -> LogFact:
        return LogFact(verb, minutes * 60.0, name, "me", data)

    def submit(minutes: float, name: str) -> LogFact:
        asks = {"cards_per_pod": 8, "minutes": 60, "command": "x", "queue": "q"}
        return fact(minutes, "submitted", name, job=dataclasses.asdict(job(name, **asks)))

    def start(minutes: float, name: str, node: str) -> LogFact:
        pods = [{"node": node, "cards": list(range(8)), "rank": 0, "kind": "gpu-8"}]
        return fact(minutes, "started", name, pods=pods)

    store.append(
        [
            fact(0, "opened", identity="x", policy="topology", **limits),
            fact(0, "node came", node="n", **come),
            submit(0, "a"), start(0, "a", "n"),
            submit(5, "b"),
            fact(10, "held", "b"), fact(20, "released", "b"),
            fact(30, "node gone", node="n"), fact(30, "evicted", "a", why="node n is lost"),
            fact(40, "node came", node="n", **come), start(40, "a", "n"),
            submit(50, "c"), fact(55, "cancelled", "c"),
            fact(100, "ended", "a", codes=[0], state="done"),
            start(100, "b", "n"),
            fact(110, "ended", "b", codes=[1], state="waiting"), start(110, "b", "n"),
            fact(115, "cancelled", "b"),
            fact(116, "cordoned", node="n", why=""),
        ],
        store.load(),
    )  # fmt: skip
    store.close()
    trace = traces.read(folder, "log")
    found = [(one.job.name, one.at / 60, one.waited, one.seconds / 60) for one in trace.arrivals]
    assert found == [
        ("a", 0, 600.0, 60),
        ("b", 20, 80 * 60.0, 10),
        ("c", 50, None, float("inf")),
        ("b#2", 110, 0.0, 5),
    ]
    assert trace.inventory is not None
    assert trace.inventory.nodes[0].leaf == "l0"
    assert trace.notes == ("1 cordons are not replayed",)
    data = asked(trace, queue("q", max=4))
    assert team(data, "q")["error_p95_min"] == 0, "the node dies in the replay as well"
    assert {one["job"] for one in data["never_fit"]} == {"a", "b", "b#2", "c"}


def test_a_team_of_which_fewer_jobs_start_does_not_wait_less(tmp_path: Path) -> None:
    """Its jobs of one card still start; that they wait less says nothing of those of eight."""
    text = two_teams().splitlines()
    small = [line.replace("gres/gpu=8", "gres/gpu=1") for line in text if "|blue|" in line]
    big = slurm(*[(f"{i}3", "blue", i * 120, i * 120, i * 120 + 60, 8, "COMPLETED")
                  for i in range(12)]).splitlines()  # fmt: skip
    data = asked(read(tmp_path, "\n".join([*big, *small]), "sacct"), queue("blue", max=4))
    blue = team(data, "blue")
    assert blue["not_started"] == [0, 12]
    assert blue["changed_min"] < blue["replayed_min"]
    assert blue["difference_min"] is None
    assert "say too little" in blue["unsaid"]
