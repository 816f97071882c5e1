"""`joymigrate cluster`: contracts of plan and simulate, and one mistake per command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate.cli._main import run as main

INVENTORY = """
nodes:
- {name: a, kind: ascend-910-8, used: [0], leaf: l0}
- {name: b, kind: ascend-910-8, unhealthy: [4], leaf: l0}
- {name: g, kind: gpu-8, cards: 8, leaf: l1}
"""
JOBS = """
queues: [{name: q, min: 4, max: 12}]
jobs:
- {name: one, kind: ascend-910-8, pods: 1, cards_per_pod: 1, queue: q, priority: 0, minutes: 10}
- {name: four, kind: ascend-910-8, pods: 2, cards_per_pod: 4, queue: q, priority: 1, minutes: 60}
- {name: odd, kind: ascend-910-8, pods: 1, cards_per_pod: 3, queue: q}
- {name: gpu, kind: gpu-8, pods: 1, cards_per_pod: 8, queue: q, minutes: 5}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "inv.yaml").write_text(INVENTORY)
    (tmp_path / "jobs.yaml").write_text(JOBS)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in ("cluster", *arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def data(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    code, out, err = run(capsys, *arguments, "--format", "json")
    assert code == 0, err
    return json.loads(out)


def test_plan_says_who_gets_which_cards_and_why_others_wait(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "--inventory", files / "inv.yaml", "--jobs", files / "jobs.yaml"
    found = data(capsys, "plan", *given)
    assert found["schema"] == "joymigrate.plan/1"
    placed = {item["job"]: item["pods"] for item in found["placements"]}
    assert [(pod["node"], pod["cards"]) for pod in placed["four"]] == [
        ("a", [4, 5, 6, 7]),
        ("b", [0, 1, 2, 3]),
    ]
    assert (placed["one"][0]["node"], placed["one"][0]["cards"]) == ("a", [1])
    waiting = {item["job"]: item for item in found["waiting"]}
    assert "legal are 1, 2, 4, 8" in waiting["odd"]["reason"]
    assert "MAX 12" in waiting["gpu"]["reason"]
    assert all(item["frees"] for item in waiting.values())
    assert found["evicted"] == []
    code, text, _ = run(capsys, "plan", *given)
    assert code == 0
    assert text.endswith("Placed 2 of 4 jobs, stopped 0.\n")


def test_running_jobs_are_stopped_for_a_claim(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "more.yaml").write_text(
        "queues: [{name: q, min: 8}, {name: guest}]\n"
        "jobs:\n"
        "- {name: old, kind: gpu-8, cards_per_pod: 2, queue: guest,\n"
        "   running: [{node: g, cards: [0, 1]}]}\n"
        "- {name: claim, kind: gpu-8, cards_per_pod: 8, queue: q}\n"
    )
    found = data(capsys, "plan", "--inventory", files / "inv.yaml", "--jobs", files / "more.yaml")
    assert found["evicted"] == ["old"]
    assert [item["job"] for item in found["placements"]] == ["claim"]
    assert found["waiting"][0]["job"] == "old"


def test_simulate_our_own_jobs_under_two_policies(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "\n".join(f"j{i},gpu-8,1,4,q{i % 2},0,30,{i}" for i in range(12))
    head = "name,kind,pods,cards_per_pod,queue,priority,minutes,arrival_minutes"
    (files / "jobs.csv").write_text(f"{head}\n{rows}\n")
    given = ["simulate", "--inventory", files / "inv.yaml", "--trace", files / "jobs.csv"]
    found = data(capsys, *given, "--trace-format", "jobs", "--policy", "topology,spread")
    assert found["schema"] == "joymigrate.simulation/1"
    assert (found["jobs"], found["evictions"], found["unplaced"]) == (12, 0, [])
    assert found["wait_mean_h"] > 0
    assert [one["policy"] for one in found["policies"]] == ["topology", "spread"]
    again = data(capsys, *given, "--policy", "topology,spread")
    for one in (found, again, *found["policies"], *again["policies"]):
        one.pop("decisions_per_s")
    assert again == found
    code, page, _ = run(capsys, *given, "--format", "html")
    assert code == 0
    assert page.startswith("<!doctype html>")
    assert "<polygon" in page
    assert "<rect" in page


def test_the_arrival_experiment_is_deterministic_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = "\n".join(f"n{i},64000,262144,8,A10" for i in range(4))
    (tmp_path / "nodes.csv").write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}\n")
    pods = "\n".join(f"p{i},4000,1024,1,{(300, 1000)[i % 2]}" for i in range(40))
    (tmp_path / "pods.csv").write_text(f"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n{pods}\n")
    given = ["simulate", "--inventory", tmp_path / "nodes.csv", "--trace", tmp_path / "pods.csv"]
    given += ["--trace-format", "openb", "--policy", "fragmentation", "--arrival", 1.3]
    first, second = (data(capsys, *given, "--seed", 3) for _ in range(2))
    assert first["allocation_pct"] == second["allocation_pct"]
    assert 90 < first["allocation_pct"] <= 100
    assert all(item["reason"] for item in first["unplaced"])
    code, _, err = run(capsys, *given[:-2])
    assert code == 2
    assert "--arrival" in err


def test_detect_render_and_validate(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "detect", "--from", files, "--name", "x", "-o", files / "n.yaml")
    assert code == 0
    assert "warning:" in err
    assert "name: x" in (files / "n.yaml").read_text()
    for engine in ("volcano", "kueue", "mindcluster"):
        manifest = files / f"{engine}.yaml"
        (files / "legal.yaml").write_text(JOBS.replace("cards_per_pod: 3", "cards_per_pod: 4"))
        assert run(capsys, "render", files / "legal.yaml", "--for", engine, "-o", manifest)[0] == 0
        code, out, _ = run(capsys, "validate", manifest)
        assert code == 0, out
    text = (files / "volcano.yaml").read_text().replace("minAvailable", "minAvailble", 1)
    (files / "volcano.yaml").write_text(text)
    code, out, _ = run(capsys, "validate", files / "volcano.yaml", "--format", "json")
    assert code == 1
    assert "minAvailable" in json.loads(out)["problems"][0]["help"]
    code, _, err = run(capsys, "apply", files / "volcano.yaml")
    assert code == 2
    assert "problems, the first" in err


@pytest.mark.parametrize(
    ("inventory", "jobs", "words"),
    [
        ("nodes: [{name: a, kind: ascend-910b}]", "jobs: []", "unknown server kind"),
        (
            "nodes: [{name: a, kind: gpu-8, used: [8]}]",
            "jobs: []",
            "there is no card 8",
        ),
        ("nodes: [{name: a, kind: gpu-8}, {name: a, kind: gpu-8}]", "jobs: []", "two nodes"),
        ("nodes: []", "jobs: []", "has no node"),
        ("nodes: [", "jobs: []", "not valid YAML"),
        ("{}", "jobs: []", "'nodes' is missing"),
        ("nodes: [{name: a, kind: gpu-8}]", "jobs: [{name: j, card: 1}]", "unknown key 'card'"),
        ("nodes: [{name: a, kind: gpu-8}]", "jobs: [{name: j}, {name: j}]", "two jobs"),
        (
            "nodes: [{name: a, kind: gpu-8}]",
            "queues: [{name: q}]\njobs: [{name: j, queue: r}]",
            "no queue 'r'",
        ),
        (
            "nodes: [{name: a, kind: gpu-8}]",
            "queues: [{name: q, min: 9}]\njobs: []",
            "guarantee 9",
        ),
        ("nodes: [{name: a, kind: gpu-8}]", "jobs: [{name: j, pods: -1}]", "'pods' is -1"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inventory: str, jobs: str, words: str
) -> None:
    (tmp_path / "i.yaml").write_text(inventory)
    (tmp_path / "j.yaml").write_text(jobs)
    given = "--inventory", tmp_path / "i.yaml", "--jobs", tmp_path / "j.yaml"
    code, out, err = run(capsys, "plan", *given)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("history --lines -1", "--lines"),
        ("logs j --lines 0", "--lines"),
        ("logs j --attempt -1", "--attempt"),
        ("exec j --rank -1 -- ls", "--rank"),
        ("exec j --timeout nan -- ls", "--timeout is nan"),
    ],
)
def test_a_number_that_means_nothing_is_refused_before_a_cluster_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, says: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    code, _, said = run(capsys, *words.split(" "))
    assert (code, says in said, "Ray" in said) == (2, True, False), said


@pytest.mark.parametrize("words", [["hold", ""], ["drain", " "], ["cancel", ""], ["logs", " "]])
def test_an_empty_name_is_refused_before_a_cluster_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    code, _, said = run(capsys, *words)
    assert (code, "a name is empty" in said) == (2, True), said


def test_quotas_of_a_file_without_queues_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "j.yaml").write_text("jobs: [{name: a, kind: gpu-8, command: x}]\n")
    code, _, said = run(capsys, "quota", "apply", tmp_path / "j.yaml")
    assert (code, "all limits would go" in said) == (2, True), said


def test_every_command_that_says_something_says_it_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, job, links = tmp_path / "day.csv", tmp_path / "job.yaml", tmp_path / "links.txt"
    record.write_text("at,rate\n0,10\n300,50\n600,20\n")
    job.write_text("{name: j, kind: gpu-8, pods: 2, cards_per_pod: 8, command: python train.py}\n")
    links.write_text("[devid 0] link status: DOWN\n")
    replay = ["autoscale", "web", "--target", "20", "--traffic", str(record)]
    code, out, _ = run(capsys, *replay, "--format", "json")
    assert (code, json.loads(out)["schema"]) == (0, "joymigrate.autoscale/1")
    assert "replica hours" in run(capsys, *replay)[1]
    code, out, _ = run(capsys, "render", str(job), "--for", "volcano", "--format", "json")
    assert (code, json.loads(out)["kind"]) == (0, "List")
    code, _, said = run(capsys, "render", str(job), "--for", "slurm", "--format", "json")
    assert (code, "takes a script" in said) == (2, True), said
    code, out, _ = run(capsys, "preflight", "--links", str(links), "--format", "json")
    assert code == 1
    assert json.loads(out)["faults"][0]["where"]
    (tmp_path / "nvidia-smi-list.txt").write_text("GPU 0: NVIDIA H200 (UUID: GPU-1)\n")
    code, out, _ = run(capsys, "detect", "--from", str(tmp_path), "--name", "n", "--format", "json")
    assert (code, json.loads(out)["nodes"][0]["name"]) == (0, "n")
