"""The board of a cluster: what `monitor` shows, over HTTP and in Chromium."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shutil
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from joymigrate.report import cluster as report
from joymigrate.run.cluster import metrics
from joymigrate.run.cluster.controller import reports
from joymigrate.run.cluster.controller.ledger import LogFact
from joymigrate.run.cluster.controller.reports import board_data, status_data
from joymigrate.run.cluster.controller.restore import restore
from joymigrate.schema import find, json_schema
from tests.run.cluster.cases import job, nodes, queue
from tests.run.cluster.controller.test_restore import Book

HOSTILE = "<img src=x onerror=alert(1)>"


def crowded() -> Book:
    """Two nodes, one card broken: one job runs, one shares a card, two wait, one never starts."""
    cluster = nodes("[{name: a, kind: gpu-8}, {name: b, kind: gpu-8, used: [7]}]")
    book = Book(cluster, [queue("q", max=14), queue("r")])
    book.submit(job("wide", pods=1, cards_per_pod=8, queue="q", minutes=60), 0.0)
    for name in ("half", "other"):
        book.submit(job(name, cards_per_pod=0.5, queue="r"), 0.0)
    book.submit(job(HOSTILE, cards_per_pod=8, queue="r"), 60.0)
    book.submit(dataclasses.replace(job("ann", cards_per_pod=7, queue="q"), user="ann"), 60.0)
    book.submit(job("never", pods=9, cards_per_pod=8, queue="r"), 60.0)
    book.write(LogFact("cards_failed", 70.0, data={"node": "b", "cards": [6]}))
    book.scheduler, actions = restore(book.ledger, cluster, 80.0)
    book.settle(actions, 80.0)
    return book


def test_the_board_says_who_has_which_card_and_why_the_others_wait() -> None:
    book = crowded()
    data = board_data(book.scheduler, book.ledger, 120.0)
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate({**data, "facts": []}, json_schema(find("board")))
    held = {row["node"]: row["held"] for row in data["nodes"]}
    assert held["a"] == ["wide"] * 8
    assert sorted(held["b"]) == ["", "", "", "", "", "*", "+", "-"]
    assert held["b"][6:] == ["-", "*"]
    rows = {row["job"]: row for row in data["jobs"]}
    assert rows["never"]["permanent"]
    assert "MAX 14" in rows["ann"]["reason"]
    assert rows[HOSTILE]["waited_s"] == 60.0
    assert data["kinds"] == [{"kind": "gpu-8", "cards": 16, "free": 5}]
    assert data["states"] == {"running": 3, "waiting": 3}


def test_waiting_jobs_stand_in_the_order_of_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    book = crowded()
    book.write(LogFact("priority", 90.0, "ann", data={"priority": 5}))
    book.scheduler, _ = restore(book.ledger, book.cluster, 90.0)
    data = board_data(book.scheduler, book.ledger, 120.0)
    waiting = [row["job"] for row in data["jobs"] if row["state"] == "waiting"]
    assert waiting[0] == "ann"
    monkeypatch.setattr(reports, "MOST_JOBS", 1)
    cut = board_data(book.scheduler, book.ledger, 120.0)
    assert [row["job"] for row in cut["jobs"]] == ["ann", "wide"]
    assert cut["left_out"] == {"nodes": 0, "waiting": 2, "held": 0, "running": 2}


def test_a_job_that_was_stopped_waits_anew() -> None:
    book = crowded()
    book.write(LogFact("evicted", 100.0, "wide", data={"why": "drained"}))
    row = reports.job_row(book.scheduler, book.ledger.records["wide"], 130.0)
    assert row["waited_s"] == 30.0


@pytest.fixture
def served() -> str:
    """The board and the metrics of `crowded` as `cluster metrics --listen` serves them."""
    book, said, there = crowded(), [], threading.Event()

    def board() -> str:
        facts = [{"number": 1, "at": 1.0, "kind": "drain", "job": "", "by": "me", "data": {}}]
        return json.dumps({**board_data(book.scheduler, book.ledger, time.time()), "facts": facts})

    def page() -> str:
        now = time.time()
        return metrics.exposition(status_data(book.scheduler, book.ledger, now, (), False))

    def talk(text: str) -> None:
        said.append(text)
        there.set()

    pages = {"/metrics": page, "/cluster.json": board}
    threading.Thread(target=metrics.serve, args=("127.0.0.1", 0, pages, talk), daemon=True).start()
    assert there.wait(10)
    return said[0].split()[-1]


def test_the_monitor_reads_a_cluster_beside_its_metrics(served: str) -> None:
    service = pytest.importorskip("joymigrate.run.serve.monitor.service")

    async def scenario() -> None:
        page = service.MonitorPage("cluster", served)
        watched = service.Monitor([page], devices=False)
        await watched.look(time.time())
        assert watched.troubles["cluster"] is None
        assert watched.latest["cluster_used|gpu-8"] == 10.0
        assert watched.latest["cluster_waiting|r"] == 2.0
        found = await watched.data(60)
        assert found["cluster"]["schema"] == "joymigrate.board/1"
        await watched.close()

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.chromium
@pytest.mark.parametrize("language", ["en", "zh"])
def test_chromium_draws_the_board(served: str, tmp_path: Path, language: str) -> None:
    pytest.importorskip("aiohttp")
    import os
    import signal
    import subprocess
    import sys

    command = [sys.executable, "-m", "joymigrate", "monitor", f"cluster={served}", "--port", "0"]
    monitor = subprocess.Popen(
        [*command, "--no-devices", "--interval", "0.3"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert monitor.stderr is not None
    address = monitor.stderr.readline().split()[-1].replace("/dashboard", "")
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or "chromium-browser"
    try:
        for _ in range(100):
            with urllib.request.urlopen(f"{address}/monitor.json") as numbers:
                if json.loads(numbers.read())["cluster"]:
                    break
            time.sleep(0.1)
        done = subprocess.run(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu",
             f"--user-data-dir={tmp_path}/c", "--virtual-time-budget=4000", "--dump-dom",
             f"{address}/cluster?lang={language}"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        os.kill(monitor.pid, signal.SIGTERM)
        monitor.wait(20)
        monitor.stderr.close()
    page = done.stdout.split("<script>")[0]
    assert "&lt;img src=x onerror" in page
    assert "<img" not in page
    assert "undefined" not in page
    assert "NaN" not in page
    assert len(re.findall(r'<i class="chip', page)) == 16 + 2  # cards, and a dot for each queue
    assert {"en": "never starts", "zh": "无法启动"}[language] in page
    assert "MAX 14" in page


def test_status_says_what_is_enough_for_the_first_jobs_and_how_many_it_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = Book(nodes("[{name: a, kind: gpu-8}]"), [])
    book.submit(job("runs", cards_per_pod=8, minutes=60), 0.0)
    for number in range(4):
        book.submit(job(f"w{number}", cards_per_pod=8, minutes=10 + number), 60.0)
    data = status_data(book.scheduler, book.ledger, 60.0)
    rows = {row["job"]: row for row in data["jobs"]}
    assert rows["w0"]["frees"].endswith("enough when runs ends (in 59 minutes)")
    assert rows["w0"]["start"]["in_s"] == 59 * 60
    assert data["looked_ahead"] == {"waiting": 4, "looked": 4}
    monkeypatch.setattr(reports, "LOOKED_SIZE", 12)  # as if the cluster were large
    data = status_data(book.scheduler, book.ledger, 60.0)
    assert data["looked_ahead"] == {"waiting": 4, "looked": 2}
    assert "at the first 2 of 4 waiting jobs" in report.status(data)
    named = status_data(book.scheduler, book.ledger, 60.0, ["w0"])
    assert named["looked_ahead"]["looked"] == 0  # who submits is not kept waiting
