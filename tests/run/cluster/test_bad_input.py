"""Every malformed inventory or jobs file is one clear error that names the place."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate.errors import JoyError
from joymigrate.run.cluster import inventory, jobs, traces
from joymigrate.run.cluster.on_ray import connect
from joymigrate.run.cluster.quota import Quotas

NODES = [
    ("numa: [0, 1]", "numa"),
    ("numa: [[0, 99]]", "card 99"),
    ("shared: [1]", "shared"),
    ("shared: {x: 5}", "'x' is not a whole number"),
    ("shared: {1: 5000}", "the most is 1,000"),
    ("labels: [x]", "labels"),
    ("ready: perhaps", "ready"),
    ("leaf: [3]", "leaf"),
    ("cpu: -3", "'cpu' is -3, the least is 0"),
    ("count: 10000000", "'count' is 10000000, the most is 100,000"),
    ("cards: 1180591620717411303424", "the most is 100,000"),
    ("cards: [0, x]", "'cards[1]' takes a whole number, got 'x'"),
]
JOBS = [
    ("tasks: [a]", "tasks[0]"),
    ("pods: 1180591620717411303424", "the most is 100,000"),
    ("tasks: {a: 1}", "'tasks' takes a list"),
    ("pods: 3, tasks: [{kind: gpu-8}]", "`pods` beside `tasks`"),
    ("running: 3", "running"),
    ("running: [{node: n1}]", "running[0]"),
    ("running: [{node: n1, cards: 0}]", "cards"),
    ("running: [{node: n1, cards: [0, 0]}]", "different card ids"),
    ("env: [a]", "env"),
    ("command: {a: 1}", "command"),
    ("command: 'sh -c \"exit'", "No closing quotation"),
    ("queue: [a]", "queue"),
    ("kind: 8", "unknown server kind '8'"),
    ("minutes: -5", "'minutes' is -5"),
    ("min_pods: 5", "min_pods"),
    ("cards_per_pod: 0.00001", "smallest share"),
]
FILES = [
    ("queues: 3", "'queues' takes a list"),
    ("queues: {a: 1}", "'queues' takes a list"),
    ("queues: [{name: [a]}]", "name"),
    ("queues: [{name: a, priority: x}]", "priority"),
    ("weights: [a]", "weights"),
    ("weights: {gpuu: 1}", "Did you mean 'gpu'"),
    ("priorities: [a]", "priorities"),
    ("priorities: {a: x}", "priorities.a"),
]


def message(call: Any, *arguments: Any) -> str:
    with pytest.raises(JoyError) as caught:
        call(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(("text", "says"), NODES)
def test_a_malformed_node_is_named(text: str, says: str) -> None:
    raw = yaml.safe_load(f"nodes: [{{name: n1, kind: gpu-8, {text}}}]")
    said = message(inventory.from_data, raw, "inv.yaml")
    assert says in said
    assert "inv.yaml nodes[0]" in said


@pytest.mark.parametrize(("text", "says"), JOBS)
def test_a_malformed_job_is_named(text: str, says: str) -> None:
    said = message(jobs.from_data, yaml.safe_load(f"jobs: [{{name: j, {text}}}]"), "jobs.yaml")
    assert says in said
    assert "jobs.yaml jobs[0]" in said


@pytest.mark.parametrize(("text", "says"), FILES)
def test_a_malformed_part_of_the_jobs_file_is_named(text: str, says: str) -> None:
    assert says in message(jobs.from_data, yaml.safe_load(f"jobs: []\n{text}"), "jobs.yaml")


@pytest.mark.parametrize("bounds", ["min: 3, deserved: 2", "deserved: 9, max: 3", "min: 4, max: 3"])
def test_min_deserved_and_max_must_rise(bounds: str) -> None:
    load = jobs.from_data(yaml.safe_load(f"{{jobs: [], queues: [{{name: a, {bounds}}}]}}"))
    assert "is above its" in message(Quotas, load.queues, ())


def test_tasks_accept_the_kinds_of_their_job_unless_they_name_their_own() -> None:
    raw = {"name": "j", "kind": "gpu-8", "tasks": [{"pods": 2}, {"kinds": ["gpu-4"]}]}
    tasks = jobs.from_data({"jobs": [raw]}).jobs[0].tasks
    assert [task.kinds for task in tasks] == [("gpu-8",), ("gpu-4",)]


def test_a_jobs_trace_keeps_its_arrivals_and_names_a_wrong_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: [{name: b, arrival_minutes: 2}, {name: a, arrival_s: 60, minutes: 1}]")
    found = traces.read(path, "jobs").arrivals
    assert [(arrival.job.name, arrival.at) for arrival in found] == [("a", 60.0), ("b", 120.0)]
    path.write_text("jobs: [{name: b, arrival_s: soon}]")
    assert "'arrival_s' takes a number" in message(traces.read, path, "jobs")


def test_a_command_line_keeps_quoted_words_together() -> None:
    job = jobs.from_data({"name": "j", "command": "sh -c 'exit 3'"}).jobs[0]
    assert job.command == ("sh", "-c", "exit 3")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_at_which_nobody_listens_is_an_error_at_once(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(JoyError, match="no Ray cluster answers") as error:
            connect.knock(address)
    assert error.value.where == address


@pytest.mark.parametrize("address", ["auto", "local", "somewhere", "host:port"])
def test_an_address_without_a_port_is_left_to_ray(address: str) -> None:
    connect.knock(address)
