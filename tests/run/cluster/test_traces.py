"""Traces as they are published: which job a row becomes, and one error for a row that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import traces
from joymigrate.run.cluster.simulate import simulate
from tests.run.cluster.cases import nodes

PHILLY = "vc,arrival_s,num_gpus,duration_v100_s\n"
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("cards", "pods", "per_pod"),
    [(1, 1, 1), (3, 1, 3), (8, 1, 8), (12, 2, 6), (16, 2, 8), (22, 11, 2), (11, 11, 1), (20, 4, 5)],
)
def test_a_philly_job_has_pods_of_the_largest_divisor_up_to_8(
    tmp_path: Path, cards: int, pods: int, per_pod: int
) -> None:
    trace = traces.read(written(tmp_path, f"{PHILLY}a,0,{cards},60\n"), "philly")
    task = trace.arrivals[0].job.tasks[0]
    assert (task.pods, task.cards) == (pods, per_pod)


def test_philly_jobs_come_by_arrival_with_their_cluster_as_queue(tmp_path: Path) -> None:
    text = f"{PHILLY}late,100.5,8,3600\nearly,20,4,90\nsame,20,4,30\n"
    trace = traces.read(written(tmp_path, text), "philly")
    found = [(one.job.name, one.job.queue, one.at, one.seconds) for one in trace.arrivals]
    assert found == [
        ("philly-1", "early", 20.0, 90.0),
        ("philly-2", "same", 20.0, 30.0),
        ("philly-0", "late", 100.5, 3600.0),
    ]
    assert trace.arrivals[2].job.minutes == 60
    run = simulate(nodes("[{name: a, kind: gpu-8}]"), trace, "topology")
    assert run.tally.waited == {"philly-1": 0, "philly-2": 0, "philly-0": 9.5}
    assert run.hours == pytest.approx((110 + 3600 - 20) / 3600)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("a,0,0,60", "num_gpus is '0'"),
        ("a,0,x,60", "`num_gpus` is 'x', not a number"),
        ("a,0,inf,60", "`num_gpus` is a number of at least 0, got inf"),
        ("a,0,-8,60", "`num_gpus` is a number of at least 0, got -8"),
        ("a,soon,8,60", "not a number: could not convert string to float: 'soon'"),
        ("a,nan,8,60", "seconds are finite"),
        ("a,0,8,inf", "seconds are finite"),
        ("a,0,8,-60", "a run time is not negative"),
        ("a,0,8", "the row ends before duration_v100_s"),
    ],
)
def test_a_philly_row_that_is_none_is_named_with_its_line(
    tmp_path: Path, row: str, says: str
) -> None:
    with pytest.raises(JoyError, match=says) as caught:
        traces.read(written(tmp_path, f"{PHILLY}a,0,8,60\n{row}\n"), "philly")
    assert str(caught.value.where).endswith("trace.csv:3")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("p,1000,1,2,500,,0,9", "only one card can be shared"),
        ("p,1000,1,inf,500,,0,9", "`num_gpu` is a number"),
        ("p,-1,1,1,500,,0,9", "`cpu_milli` is a number of at least 0"),
        ("p,1000", "the row ends before memory_mib, num_gpu, gpu_milli"),
    ],
)
def test_an_openb_row_that_is_none_is_named_with_its_line(
    tmp_path: Path, row: str, says: str
) -> None:
    with pytest.raises(JoyError, match=says) as caught:
        traces.read(written(tmp_path, f"{OPENB}{row}\n"), "openb")
    assert str(caught.value.where).endswith("trace.csv:2")


def test_openb_pods_are_shares_or_whole_cards_of_the_models_they_name(tmp_path: Path) -> None:
    text = f"{OPENB}half,4000,2048,1,500,T4|P100,10,70\nwhole,1000,1,2,1000,,0,0\n"
    whole, half = traces.read(written(tmp_path, text), "openb").arrivals
    assert (half.job.tasks[0].milli, half.job.tasks[0].cards) == (500, 0)
    assert half.job.tasks[0].models == ("T4", "P100")
    assert (half.at, half.seconds) == (10, 60)
    assert (whole.job.tasks[0].milli, whole.job.tasks[0].cards) == (0, 2)


def test_a_trace_without_jobs_or_of_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="has no job"):
        traces.read(written(tmp_path, PHILLY), "philly")
    with pytest.raises(JoyError, match="Did you mean 'philly'"):
        traces.read(written(tmp_path, PHILLY), "phily")
    with pytest.raises(JoyError, match="missing column num_gpus"):
        traces.read(written(tmp_path, "vc,arrival_s,duration_v100_s\na,0,60\n"), "philly")
