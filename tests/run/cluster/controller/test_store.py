"""A cluster's log: what was acknowledged is there, nothing is changed, one writer at a time."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster.controller import store as stores
from joymigrate.run.cluster.controller.ledger import JobLedger, LogFact
from joymigrate.run.cluster.controller.store import LogStore
from tests.run.cluster.cases import job, queue

WRITER = """
import sys
from pathlib import Path
from joymigrate.run.cluster.controller.ledger import LogFact
from joymigrate.run.cluster.controller.store import LogStore
from tests.run.cluster.controller.test_store import submitted
store = LogStore(Path(sys.argv[1]))
ledger = store.load()
for number in range(10_000_000):
    store.append([submitted(f"j{number}"), LogFact("held", 1.0, f"j{number}")], ledger)
    print(number, flush=True)
"""


def submitted(name: str, **more: Any) -> LogFact:
    return LogFact("submitted", 1.0, name, "me", {"job": dataclasses.asdict(job(name, **more))})


def opened(*queues: Any) -> LogFact:
    limits = {"queues": [dataclasses.asdict(one) for one in queues], "weights": {"npu": 0.5}}
    return LogFact("opened", 0.0, data={"identity": "x", "policy": "spread", **limits})


def started(name: str, node: str = "n", *cards: int) -> LogFact:
    pods = [{"node": node, "cards": list(cards), "rank": 0, "kind": "gpu-8"}]
    return LogFact("started", 2.0, name, data={"pods": pods})


def filled(folder: Path) -> tuple[LogStore, JobLedger]:
    """A log with something of everything."""
    store = LogStore(folder)
    ledger = store.load()
    store.append([opened(queue("q", min=2, max={"gpu": 8}))], ledger)
    store.append([submitted("a", queue="q", env={"A": "1"}), submitted("b")], ledger)
    store.append([started("a", "n", 0, 1)], ledger)
    attempt = ledger.records["a"].attempt
    store.append(
        [
            LogFact("launched", 3.0, "a", data={"attempt": attempt}),
            LogFact("evicted", 4.0, "a", data={"why": "b comes first"}),
            LogFact("promised", 4.0, "a"),
            LogFact("held", 5.0, "b"),
            LogFact("priority", 5.0, "b", data={"priority": 7}),
            LogFact("cordoned", 6.0, data={"node": "n", "why": "a fan"}),
            LogFact("cards_failed", 6.0, data={"node": "n", "cards": [3, 1]}),
            LogFact("cards_healed", 6.0, data={"node": "n", "cards": [1]}),
        ],
        ledger,
    )
    return store, ledger


def test_what_is_read_again_is_what_was_known(tmp_path: Path) -> None:
    store, ledger = filled(tmp_path)
    assert ledger.failed == {"n": (3,)}
    assert ledger.records["b"].job.priority == 7
    assert [one.job for one in ledger.leaving()] == ["a"]
    store.close()
    assert LogStore(tmp_path).load() == ledger


def test_a_snapshot_and_the_log_behind_it_say_what_the_whole_log_says(tmp_path: Path) -> None:
    store, ledger = filled(tmp_path)
    store.snapshot(ledger)
    store.append([LogFact("released", 7.0, "b"), LogFact("cancelled", 8.0, "a", "me")], ledger)
    store.close()
    again = LogStore(tmp_path)
    loaded = again.load()
    assert again.since_snapshot == 2
    assert loaded == ledger
    again.base.execute("UPDATE snapshot SET data = '{'")  # one that cannot be read is passed over
    assert again.load() == ledger


def test_nothing_written_can_be_changed_or_taken_away(tmp_path: Path) -> None:
    store, _ = filled(tmp_path)
    for statement in ("UPDATE log SET at = 0", "DELETE FROM log"):
        with pytest.raises(sqlite3.IntegrityError, match="only appended to"):
            store.base.execute(statement)


def test_a_transaction_is_whole_or_not_there(tmp_path: Path) -> None:
    store, ledger = filled(tmp_path)
    before = ledger.last
    with pytest.raises(TypeError):
        store.append([submitted("c"), LogFact("held", 1.0, "c", data={"x": object()})], ledger)
    with pytest.raises(sqlite3.Error):
        store.append([submitted("c"), LogFact("held", None, "c")], ledger)  # type: ignore[arg-type]
    assert (ledger.last, len(list(store.facts(before)))) == (before, 0)
    assert "c" not in ledger.records


def test_two_writers_are_kept_apart_and_a_reader_is_not(tmp_path: Path) -> None:
    store, ledger = filled(tmp_path)
    with pytest.raises(JoyError, match="another controller"):
        LogStore(tmp_path)
    assert len(list(stores.facts(stores.read_only(tmp_path)))) == ledger.last
    store.close()
    LogStore(tmp_path).close()
    with pytest.raises(JoyError, match="no cluster's log"):
        stores.read_only(tmp_path / "elsewhere")


def test_nobody_else_may_read_the_environments_of_jobs(tmp_path: Path) -> None:
    LogStore(tmp_path / "new").close()
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


def test_what_was_acknowledged_before_a_kill_is_there(tmp_path: Path) -> None:
    told = -1
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            told = int(writer.stdout.readline())
            time.sleep(0.15)
            os.kill(writer.pid, signal.SIGKILL)
            told = max([told, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        store = LogStore(tmp_path)
        ledger = store.load()
        assert told >= 0
        assert {f"j{number}" for number in range(told + 1)} <= ledger.records.keys()
        assert {record.state for record in ledger.records.values()} == {"held"}
        store.close()


def test_jobs_that_are_over_leave_the_ledger_and_stay_in_the_log(tmp_path: Path) -> None:
    ledger = JobLedger()
    ledger.apply(dataclasses.replace(submitted("late", after=["j0"]), number=1))
    for number in range(3000):
        fact = submitted(f"j{number}")
        ledger.apply(dataclasses.replace(fact, number=2 * number + 2))
        ledger.apply(LogFact("cancelled", 2.0, f"j{number}", number=2 * number + 3))
    assert 2000 <= len(ledger.records) < 2400
    assert {"j2999", "late", "j0"} <= ledger.records.keys()  # `late` waits to know how j0 ended
