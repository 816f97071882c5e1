"""The rollout in a running gateway: decisions, hot standby, persistence, admin, gate, shadow."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.ledger import Ledger, Step, Subject
from joymigrate.run.serve.evidence import rollout
from joymigrate.run.serve.evidence.answers import OPEN
from joymigrate.run.serve.gateway import clock, health, server, settings, simulate
from joymigrate.run.serve.gateway.backend import HttpBackend
from joymigrate.run.serve.gateway.calls import GatewayCall, forward_headers
from joymigrate.run.serve.gateway.server import Gateway
from joymigrate.run.serve.gateway.store import StateStore
from joymigrate.run.serve.gateway.upstreams import Upstream
from joymigrate.run.serve.web.apis import CHAT
from tests.run.serve.gateway.fake import Fake
from tests.run.serve.gateway.faults import Fault, Schedule

from .conftest import Bench, Table, ramp, running


def test_the_simulation_uses_the_gateways_own_state_machine() -> None:
    assert simulate.Rollout is rollout.Rollout
    assert server.Rollout is rollout.Rollout


def test_a_dead_standby_is_rolled_back_and_no_client_notices(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(40):
            assert (await bench.ask(f"{number}")).outcome == "ok"
        state = await bench.get("/admin/rollout")
        assert state["schema"] == "joymigrate.rollout/1"
        assert state["state"] == "rolled_back"
        assert state["weights"] == {"gpu": 100, "npu": 0}
        evidence = state["evidence"]
        assert (evidence["requests"], evidence["failures"]) == (3, 3)
        assert evidence["upper_bound"] == 1.0
        assert bench.npu.seen == 3, "no request after the decision"
        assert [event["kind"] for event in state["events"]][-1] == "rolled_back"

    table.run(scenario, npu={"status_500": 1.0}, rollout=ramp(50))


def test_concurrent_requests_see_no_failure_and_none_starts_after_the_decision(
    table: Table,
) -> None:
    async def scenario(bench: Bench) -> None:
        async def client(name: int) -> None:
            for number in range(30):
                answer = await bench.ask(f"{name} {number}", stream=number % 2 == 0)
                assert answer.text == bench.expected(f"{name} {number}")

        await asyncio.gather(*(client(name) for name in range(8)))
        assert bench.gateway.rollout.state == "rolled_back"
        decided = bench.npu.seen
        await asyncio.gather(*(bench.ask(f"later {i}") for i in range(50)))
        assert bench.npu.seen == decided
        assert bench.seen == {"ok": 8 * 30 + 50}
        assert bench.outcomes() == {"ok": 290}

    faults = {"reset": 0.1, "status_500": 0.1, "truncate": 0.1, "error_after_200": 0.1}
    table.run(scenario, npu=faults, rollout=ramp(50))


def test_counters_sum_to_what_clients_counted(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        asked = [
            bench.ask(f"{i}", stream=i % 3 > 0, model="unknown" if i % 10 == 0 else "m")
            for i in range(200)
        ]
        answers = await asyncio.gather(*asked)
        statuses = Counter(answer.status for answer in answers)
        seen = bench.outcomes()
        assert sum(seen.values()) == 200
        assert seen["client_error"] == statuses[404] == 20
        assert seen["ok"] == sum(1 for answer in answers if answer.outcome == "ok")
        total, primary = bench.gateway.rollout.total, bench.gateway.rollout.primary
        # Each of the 20 that both refuse was asked of both, and is evidence about neither.
        assert (total.requests, primary.requests) == (bench.npu.seen - 20, bench.gpu.seen - 20)
        injected = sum(bench.npu.injected.values())
        assert total.failures == injected
        text = bench.gateway.metrics.text().decode()
        assert f'joymigrate_requests_total{{outcome="ok"}} {float(seen["ok"])}' in text

    faults = {"reset": 0.1, "status_500": 0.1, "cut": 0.1}
    table.run(scenario, npu=faults, rollout={**ramp(50), "rule": "eprocess:limit=0.9"})


def test_the_ramp_walks_to_promotion_on_evidence(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for wave in range(100):  # on a busy machine a few answers are slow, and take a longer proof
            await asyncio.gather(*(bench.ask(f"{wave} {i}", stream=False) for i in range(25)))
            if bench.gateway.rollout.state == "promoted":
                break
            await asyncio.sleep(0.01)
        state = await bench.get("/admin/rollout")
        assert state["state"] == "promoted"
        assert state["weights"] == {"gpu": 0, "npu": 100}
        assert state["evidence"]["requests"] >= state["evidence"]["needed"] == 328
        weights = [event["weight"] for event in state["events"] if event["kind"] == "step"]
        assert weights == [50, 100]

    plan = {"start": "auto", "steps": [20, 50, 100], "min_step_seconds": 0.05, "limit": 0.01}
    table.run(scenario, rollout=plan)


def test_a_dead_primary_is_replaced_by_the_standby_at_once(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.gpu.stop()
        for number in range(30):
            answer = await bench.ask(f"{number}")
            assert (answer.outcome, answer.upstream) == ("ok", "npu")
        while bench.gateway.router.primary.up:
            await asyncio.sleep(0.01)
        assert (await bench.ask()).outcome == "ok"
        assert bench.gateway.rollout.state == "ramping"

    table.run(scenario, rollout=ramp(5))


def test_a_primary_that_dies_in_a_stream_hands_it_over(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        asked = [asyncio.create_task(bench.ask(f"{i}")) for i in range(10)]
        while bench.gpu.seen < 10:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        await bench.gpu.stop()
        for number, answer in enumerate(await asyncio.gather(*asked)):
            assert (answer.outcome, answer.text) == ("ok", bench.expected(f"{number}"))

    table.run(scenario, gpu=Fake(tokens=24, gap_seconds=0.01), npu=Fake(tokens=24),
              rollout={"start": "manual"})  # fmt: skip


def test_when_both_fail_the_ramp_pauses(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(40):
            assert (await bench.ask(f"{number}")).outcome == "error"
        assert bench.gateway.rollout.state == "paused"

    table.run(scenario, gpu={"status_500": 1.0}, npu={"status_500": 1.0}, rollout=ramp(50))


def test_a_rolled_back_standby_answers_nobody_even_when_the_primary_is_dead(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.order("rollback")
        await bench.gpu.stop()
        answer = await bench.ask()
        assert answer.status == 502
        assert bench.npu.seen == 0

    table.run(scenario, rollout=ramp(50))


def test_as_a_last_resort_it_may(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.order("rollback")
        await bench.gpu.stop()
        while bench.gateway.router.primary.up:
            await asyncio.sleep(0.01)
        assert (await bench.ask()).upstream == "npu"

    table.run(scenario, rollout={**ramp(50), "last_resort": True})


def test_orders_are_obeyed_or_refused_with_a_reason(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        assert (await bench.order("pause"))[1]["state"] == "paused"
        assert (await bench.order("resume"))[1]["state"] == "ramping"
        assert (await bench.order("rollback"))[1]["state"] == "rolled_back"
        status, body = await bench.order("pause")
        assert status == 409
        assert "cannot pause" in body["error"]["message"]
        status, body = await bench.order("jump")
        assert status == 400
        assert (await bench.order("promote"))[1]["weights"] == {"gpu": 0, "npu": 100}

    table.run(scenario, rollout=ramp(5))


def test_a_foreign_page_cannot_give_orders(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        form = {"Content-Type": "text/plain"}
        url = bench.url + "/admin/rollout"
        async with bench.session.post(url, data='{"order":"rollback"}', headers=form) as reply:
            assert reply.status == 400
        assert bench.gateway.rollout.state == "ramping"

    table.run(scenario, rollout=ramp(5))


def test_an_admin_key_is_asked_for_where_it_is_set(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        assert (await bench.order("pause"))[0] == 401
        key = {"Authorization": "Bearer boss"}
        assert (await bench.get("/admin/rollout", headers=key))["state"] == "ramping"

    table.run(scenario, rollout=ramp(5), admin_key="boss")


def test_a_drain_ends_at_its_deadline_and_a_second_signal_ends_it_at_once(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        asked = asyncio.create_task(bench.ask(max_tokens=500))
        while not bench.gateway.site.active:
            await asyncio.sleep(0.005)
        assert (await bench.get("/ready"))["status"] == "ok"
        hurried = asyncio.Event()
        hurried.set()
        await bench.gateway.stop(hurried)
        assert bench.gateway.draining
        assert bench.gateway.site.active == 0, "nothing is waited for"
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    table.run(scenario, gpu=Fake(tokens=500, gap_seconds=0.05), rollout={"start": "manual"},
              limits={"drain_seconds": 30.0})  # fmt: skip


# The gate


def record(folder: Path, verdict: str, grade: str, model: str = "qwen") -> None:
    (folder / "pyproject.toml").touch()
    Ledger(folder).record(
        Step(
            "verify",
            chip="ascend",
            subject=Subject(model),
            verdict=verdict,
            grade=grade,
            stage="forward",
        )
    )


@pytest.mark.parametrize(
    ("verdict", "grade", "opens", "reason"),
    [
        ("pass", "measured", True, "passed on ascend"),
        ("pass", "rehearsed", False, "rehearsed verdict only"),
        ("fail", "measured", False, "did not pass"),
        ("inconclusive", "measured", False, "did not pass"),
        (None, None, False, "has no verdict"),
    ],
)
def test_only_a_measured_passing_verdict_opens_the_gate(
    table: Table, verdict: str | None, grade: str | None, opens: bool, reason: str
) -> None:
    if verdict and grade:
        record(table.folder, verdict, grade)

    async def scenario(bench: Bench) -> None:
        state = await bench.get("/admin/rollout")
        assert state["state"] == ("ramping" if opens else "standby")
        assert reason in state["gate"]["reason"]
        if not opens:
            assert (await bench.order("promote"))[0] == 409
            assert state["weights"]["npu"] == 0

    table.run(scenario, rollout=ramp(50), unverified=False,
              npu_more={"chip": "ascend", "model": "qwen", "ledger": "."})  # fmt: skip


def test_a_standby_that_names_no_model_is_refused(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.gateway.rollout.state == "standby"
        assert "names no model" in bench.gateway.rollout.gate_reason

    table.run(scenario, rollout=ramp(50), unverified=False)


def test_a_standby_known_to_compute_wrongly_does_not_even_stand_in(table: Table) -> None:
    record(table.folder, "fail", "measured")

    async def scenario(bench: Bench) -> None:
        await bench.gpu.stop()
        assert (await bench.ask()).status == 502
        assert bench.npu.seen == 0

    table.run(scenario, rollout=ramp(50), unverified=False,
              npu_more={"chip": "ascend", "model": "qwen"})  # fmt: skip


# Shadow


def test_the_shadow_compares_without_touching_answers(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(50):
            answer = await bench.ask(f"{number}", stream=number % 2 == 0)
            assert (answer.upstream, answer.outcome) == ("gpu", "ok")
        while bench.gateway.shadow.running:
            await asyncio.sleep(0.01)
        seen = await bench.get("/admin/shadow")
        assert (seen["compared"], bench.npu.seen) == (50, 50)
        same = seen["same_text"]
        assert 0 < same < 50, "a fifth of the answers drift"
        low, high = seen["interval"]
        assert low < same / 50 == seen["agreement"] < high
        assert bench.gateway.rollout.shadow_requests == 50

    table.run(scenario, npu=Fake(Schedule(seed=1), tokens=12, drift=0.2),
              rollout={"start": "manual"}, shadow={"percent": 100, "concurrency": 64})  # fmt: skip


class Thinking(Fake):
    """Reasons in a channel of its own before it answers."""

    def events(self, path: str, body: dict[str, Any], *more: Any) -> list[dict[str, Any]]:
        made = super().events(path, body, *more)
        if body.get("stream"):
            made[0]["choices"][0]["delta"]["reasoning_content"] = (
                "Let me think about it first. " * 9
            )
        return made


def test_reasoning_in_a_mirrored_stream_is_no_difference(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(6):
            await bench.ask(f"{number}", temperature=0)
        while bench.gateway.shadow.running:
            await asyncio.sleep(0.001)
        seen = await bench.get("/admin/shadow")
        assert (seen["compared"], seen["same_text"]) == (6, 6)
        assert not any(bench.gateway.rollout.answers.against.get(name) for name in OPEN)

    table.run(scenario, gpu=Thinking(tokens=6), npu=Thinking(tokens=6),
              rollout={"start": "manual"}, shadow={"percent": 100, "concurrency": 64})  # fmt: skip


def test_a_standby_that_fails_in_the_shadow_is_never_ramped(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(20):
            assert (await bench.ask(f"{number}")).upstream == "gpu"
            while bench.gateway.shadow.running:
                await asyncio.sleep(0.001)
        assert bench.gateway.rollout.state == "rolled_back"
        assert bench.npu.seen == 17, "eight broken connections in a row are one event"

    table.run(scenario, npu={"reset": 1.0}, rollout={"start": "manual"}, shadow={"percent": 100})


def test_an_empty_answer_where_the_primary_had_one_is_a_failure(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.ask(stream=False, temperature=0)
        while bench.gateway.shadow.running:
            await asyncio.sleep(0.001)
        assert bench.gateway.rollout.last_kinds == {"empty_output": 1}

    silent = Fake(tokens=1, empty=True)
    table.run(scenario, npu=silent, rollout={"start": "manual"}, shadow={"percent": 100})


PAIRED = {"min_step_pairs": 10, "min_step_seconds": 0.05, "limit": 0.01, "start": "auto",
          "steps": [20, 50, 100]}  # fmt: skip


async def wait_for_an_end(bench: Bench, ends: tuple[str, ...]) -> str:
    for wave in range(80):
        await asyncio.gather(*(bench.ask(f"{wave} {i}", temperature=1) for i in range(16)))
        if bench.gateway.rollout.state in ends:
            break
    return bench.gateway.rollout.state


def test_pairs_of_equal_answers_let_the_ramp_through(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        state = await wait_for_an_end(bench, ("promoted", "rolled_back", "paused"))
        assert state == "promoted", bench.gateway.rollout.missing(1e12)
        evidence = (await bench.get("/admin/rollout"))["evidence"]
        assert evidence["answers"]["text"]["judged"] >= 30
        assert evidence["answers"]["text"]["against"] == 0

    table.run(scenario, rollout=PAIRED)


ENDS = ("promoted", "rolled_back", "paused")


@pytest.mark.parametrize("kind", ["refusing", "silent"])
def test_a_standby_whose_answers_are_wrong_by_themselves_is_rolled_back(
    table: Table, kind: str
) -> None:
    async def scenario(bench: Bench) -> None:
        assert await wait_for_an_end(bench, ENDS) == "rolled_back"

    table.run(scenario, npu={kind: 1.0}, rollout=PAIRED)


@pytest.mark.parametrize("kind", ["refusing", "silent", "status_404"])
def test_a_primary_whose_answers_are_wrong_by_themselves_is_named(table: Table, kind: str) -> None:
    async def scenario(bench: Bench) -> None:
        assert await wait_for_an_end(bench, ENDS) == "paused"
        assert "the primary's answers are wrong" in bench.gateway.rollout.changes[-1].text
        assert bench.gateway.rollout.weight > 0

    table.run(scenario, gpu={kind: 1.0}, rollout=PAIRED)


@pytest.mark.parametrize("side", ["gpu", "npu"])
@pytest.mark.parametrize("kind", ["other_text", "short"])
def test_answers_that_differ_from_the_start_accuse_nobody(
    table: Table, kind: str, side: str
) -> None:
    async def scenario(bench: Bench) -> None:
        end = await wait_for_an_end(bench, ENDS)
        assert end == "paused", bench.gateway.rollout.changes[-1].text
        assert "nothing shows which of the two is wrong" in bench.gateway.rollout.changes[-1].text
        assert bench.gateway.rollout.weight == 0

    table.run(scenario, **{side: {kind: 1.0}}, rollout=PAIRED)


@pytest.mark.parametrize(("side", "state"), [("gpu", "paused"), ("npu", "rolled_back")])
def test_who_answers_old_questions_otherwise_has_changed(
    table: Table, side: str, state: str
) -> None:
    async def scenario(bench: Bench) -> None:
        assert await wait_for_an_end(bench, ENDS) == state
        assert "asked earlier questions again" in bench.gateway.rollout.changes[-1].text

    late = Fault("other_text", first=30)
    changed = Fake(Schedule((late,), seed=7, name=side), tokens=12)
    table.run(scenario, **{side: changed}, rollout={**PAIRED, "limit": 0.001})


# Persistence


def yaml_of(folder: Path, gpu: Fake, npu: Fake, plan: dict[str, Any]) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(
        json.dumps(
            {
                "listen": "127.0.0.1:0",
                "upstreams": {
                    "gpu": {"url": gpu.url, "role": "primary"},
                    "npu": {"url": npu.url, "role": "standby"},
                },
                "rollout": {"min_step_pairs": 0, **plan},
                "monitor": {"devices": False},
            }
        )
    )
    return path


def start(path: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "joymigrate", "serve", "--config", str(path), "--unverified"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on" in line:
            return process, line.split()[-1]
    raise AssertionError("the gateway did not start")


def fetch(url: str, body: dict[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.loads(reply.read())


@pytest.mark.parametrize("failing", [False, True])
def test_kill_9_loses_no_decision(tmp_path: Path, failing: bool) -> None:
    faults = (Fault("status_500"),) if failing else ()
    gpu, npu = Fake(tokens=4), Fake(Schedule(faults, name="npu"), tokens=4)

    async def scenario() -> None:
        await gpu.start()
        await npu.start()
        path = yaml_of(tmp_path, gpu, npu, ramp(50))
        process, url = await asyncio.to_thread(start, path)
        body = {"messages": [{"role": "user", "content": "x"}]}
        try:
            for _ in range(30):
                await asyncio.to_thread(fetch, url + "/v1/chat/completions", body)
            before = await asyncio.to_thread(fetch, url + "/admin/rollout")
            saved = tmp_path / "gateway.state.json"
            wanted = before["evidence"]["requests"]
            deadline = time.monotonic() + 10
            while json.loads(saved.read_text())["rollout"]["total"][0] < wanted:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        seen = npu.seen
        process, url = await asyncio.to_thread(start, path)
        try:
            after = await asyncio.to_thread(fetch, url + "/admin/rollout")
            await asyncio.to_thread(fetch, url + "/v1/chat/completions", body)
        finally:
            process.terminate()
            assert process.wait(20) == 0
        assert after["state"] == before["state"] == ("rolled_back" if failing else "ramping")
        assert after["weights"] == before["weights"]
        assert after["evidence"]["requests"] == before["evidence"]["requests"]
        assert after["evidence"]["level"] == pytest.approx(before["evidence"]["level"])
        if failing:
            assert npu.seen == seen
        await gpu.stop()
        await npu.stop()

    asyncio.run(scenario())


def test_a_state_that_cannot_be_read_stops_the_gateway(tmp_path: Path) -> None:
    path = yaml_of(tmp_path, Fake(), Fake(), ramp(50))
    (tmp_path / "gateway.state.json").write_text("{")
    with pytest.raises(JoyError, match="cannot read the state"):
        Gateway(settings.load(path))


def test_a_state_of_another_pair_is_not_taken_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Fake(), Fake(), rollout=ramp(50)) as bench:
            await bench.order("rollback")
        other = {"chip": "musa"}
        async with running(tmp_path, Fake(), Fake(), rollout=ramp(50), npu_more=other) as bench:
            assert bench.gateway.rollout.state == "ramping"

    asyncio.run(scenario())


def test_a_restart_without_its_permission_takes_the_traffic_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Fake(), Fake(), rollout=ramp(50)) as bench:
            assert bench.gateway.rollout.state == "ramping"
        again = running(tmp_path, Fake(), Fake(), rollout=ramp(50), unverified=False)
        async with again as bench:
            assert bench.gateway.rollout.state == "rolled_back"
            await bench.ask()
            assert bench.npu.seen == 0

    asyncio.run(scenario())


def test_the_request_log_feeds_the_simulation(table: Table) -> None:
    seen = []

    async def scenario(bench: Bench) -> None:
        for number in range(30):
            await bench.ask(f"{number}")
        seen.append(bench.npu.seen)

    table.run(scenario, npu={"reset": 0.3}, rollout={**ramp(50), "rule": "eprocess:limit=0.9"},
              log="requests.jsonl")  # fmt: skip
    from joymigrate.run.serve.gateway import streams

    record = streams.read(table.folder / "requests.jsonl", "npu")
    assert [len(record)] == seen
    assert 0 < sum(1 for outcome in record if outcome.failure) < 15


def test_a_body_that_is_no_json_object_is_the_clients_fault(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        path = bench.url + "/v1/chat/completions"
        for body in (b"{nope", b"[1]", b""):
            async with bench.session.post(path, data=body) as reply:
                assert reply.status == 400
                assert (await reply.json())["error"]["code"] == "invalid_json"
        assert bench.gpu.seen == bench.npu.seen == 0
        assert bench.outcomes() == {"rejected": 3}

    table.run(scenario)


def test_a_packed_body_reaches_the_backend_unpacked_and_says_so(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        asked = {"model": "m", "messages": [{"role": "user", "content": "how are you"}]}
        async with bench.session.post(
            bench.url + "/v1/chat/completions",
            data=gzip.compress(json.dumps(asked).encode()),
            headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
        ) as reply:
            assert reply.status == 200
            text = (await reply.json())["choices"][0]["message"]["content"]
        assert text == bench.expected("how are you")
        call = GatewayCall(CHAT, "POST", "/", {"Content-Encoding": "gzip"}, b"", None, 0.0)
        upstream = bench.gateway.settings.of_role("primary")
        assert "Content-Encoding" not in forward_headers(call, upstream)

    table.run(scenario)


def test_a_second_gateway_on_the_same_address_leaves_the_state_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            path = yaml_of(tmp_path, Fake(), Fake(), ramp(50))
            port = holder.getsockname()[1]
            path.write_text(path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
            with pytest.raises(JoyError, match="cannot listen"):
                await server.Gateway(settings.load(path), unverified=True).start()
        assert not (tmp_path / "gateway.state.json").exists()

    asyncio.run(scenario())


def test_a_second_gateway_on_the_same_state_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Fake(), Fake(), rollout=ramp(50)) as bench:
            path = yaml_of(tmp_path, bench.gpu, bench.npu, ramp(50))
            second = server.Gateway(settings.load(path), unverified=True)
            with pytest.raises(JoyError, match="another gateway has this rollout's state"):
                await second.start()
            await second.site.close()
            await bench.order("rollback")
        async with running(tmp_path, Fake(), Fake(), rollout=ramp(50)) as bench:
            assert bench.gateway.rollout.state == "rolled_back", "the lock is free, the state kept"

    asyncio.run(scenario())


def test_a_state_that_another_gateway_has_written_is_not_overwritten(tmp_path: Path) -> None:
    one, two = (StateStore(tmp_path / "state.json", {"primary": "gpu"}) for _ in range(2))
    one.save(one.number(), {"state": "ramping"})
    assert two.load() is not None
    two.save(two.number(), {"state": "rolled_back"})
    with pytest.raises(JoyError, match="another gateway has written it"):
        one.save(one.number(), {"state": "ramping"})
    saved = two.load()
    assert saved is not None
    assert saved[0] == {"state": "rolled_back"}


@pytest.mark.parametrize("hours", [-48.0, 48.0])
def test_a_jump_of_the_clock_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    plan = ramp(20, 100, min_step_seconds=3600, max_step_seconds=7200)

    async def scenario() -> None:
        async with running(tmp_path, Fake(), Fake(), rollout=plan) as bench:
            rollout, real = bench.gateway.rollout, time.time
            monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
            await bench.ask()
            await asyncio.sleep(0.5)
            assert (rollout.state, rollout.step) == ("ramping", 0)
        # Down for two days, or started again behind a clock that was set back.
        monkeypatch.setattr(clock, "BEGAN", clock.BEGAN + hours * 3600)
        async with running(tmp_path, Fake(), Fake(), rollout=plan) as bench:
            await asyncio.sleep(0.5)
            rollout = bench.gateway.rollout
            assert (rollout.state, rollout.step) == ("ramping", 0)
            assert 0 <= clock.tell_time() - rollout.step_since < 60

    asyncio.run(scenario())


def test_the_log_says_once_why_a_health_check_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        raw = {"upstreams": {"gpu": {"url": url, "role": "primary"},
                             "npu": {"url": url, "role": "standby"}}}  # fmt: skip

        async def scenario() -> None:
            found = settings.parse(raw, tmp_path / "gateway.yaml")
            wanted = found.of_role("standby")
            standby = Upstream(wanted, HttpBackend(wanted, found.limits), found.limits)
            told: list[bool] = []
            for _ in range(3):
                await health.check_once(
                    standby, found.health, lambda up, well, why: told.append(well)
                )
            await standby.backend.close()
            assert told == [], "it was never up"

        with caplog.at_level(logging.INFO, "joymigrate.serve"):
            asyncio.run(scenario())
    lines = [one.getMessage() for one in caplog.records if "health check" in one.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"npu at {url} fails its health check: ")
