"""The gateway over real HTTP with seeded faults: what clients see and what is counted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.run.serve.gateway.fake import Fake
from tests.run.serve.gateway.faults import Fault, Schedule

from .conftest import Bench, Table, ramp

BEFORE = ["refuse", "status_500", "status_503", "busy", "error_after_200", "hang"]
MIDWAY = [
    "error_midway",
    "truncate",
    "missing_finish",
    "cut",
    "reset",
    "hang_midway",
    "invalid_json",
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", BEFORE)
def test_a_fault_before_the_first_byte_reaches_no_client(
    table: Table, kind: str, stream: bool
) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask(stream=stream)
        assert (answer.outcome, answer.text) == ("ok", bench.expected())
        assert answer.upstream == "npu"
        assert (bench.gpu.seen, bench.npu.seen) == (1, 1)
        failures = bench.gateway.rollout.primary.failures
        assert failures == (0 if kind == "busy" else 1), "back-pressure is not a failure"

    table.run(scenario, gpu={kind: 1.0}, rollout={"start": "manual"})


@pytest.mark.parametrize("kind", MIDWAY)
def test_a_stream_that_breaks_is_completed_exactly(table: Table, kind: str) -> None:
    async def scenario(bench: Bench) -> None:
        asked = [bench.ask(f"question number {i}") for i in range(10)]
        for number, answer in enumerate(await asyncio.gather(*asked)):
            assert (answer.outcome, answer.text) == (
                "ok",
                bench.expected(f"question number {number}"),
            )
            assert len({event["id"] for event in answer.events}) == 1
        assert bench.gateway.rollout.primary.failures == 10
        assert bench.outcomes() == {"ok": 10}

    table.run(scenario, gpu={kind: 1.0}, rollout={"start": "manual"})


@pytest.mark.dear
@pytest.mark.parametrize("kind", MIDWAY)
@pytest.mark.parametrize("chat", [True, False])
def test_with_token_ids_the_other_backend_goes_on_behind_them(
    table: Table, kind: str, chat: bool
) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask(chat=chat, max_tokens=12, stream_options={"include_usage": True})
        whole = await bench.ask(chat=chat, max_tokens=12, stream_options={"include_usage": True})
        broken = bench.gpu.bodies[0]
        assert broken["return_token_ids"] is True
        resumed = bench.npu.bodies[0]
        assert answer.outcome == "ok"
        assert isinstance(resumed["prompt"], list)
        assert 0 < resumed["max_tokens"] < 12
        assert answer.text == whole.text
        usages = [e["usage"] for a in (answer, whole) for e in a.events if e.get("usage")]
        assert usages[0] == usages[1], "usage is summed over both backends"
        assert usages[0]["completion_tokens"] == 12

    # Only the first request of the GPU breaks.
    gpu = Fake(Schedule((Fault(kind, last=1),), seed=3, name="gpu"), tokens=12, keep_bodies=True)
    table.run(
        scenario, gpu=gpu, rollout={"start": "manual"},
        gpu_more={"token_ids": "ask"}, npu_more={"token_ids": "ask"},
    )  # fmt: skip


@pytest.mark.parametrize("kind", MIDWAY)
def test_where_nobody_can_go_on_the_client_sees_an_error(table: Table, kind: str) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask()
        assert answer.outcome == "error"
        assert answer.events[-1]["error"]["code"] == "stream_interrupted"
        assert bench.expected().startswith(answer.text)
        assert bench.outcomes() == {"interrupted": 1}

    table.run(scenario, gpu={kind: 1.0}, npu={kind: 1.0}, rollout={"start": "manual"})


def test_another_text_is_never_glued_to_a_broken_one(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        answers = [await bench.ask(f"q {i}") for i in range(5)]
        assert {answer.outcome for answer in answers} == {"error"}
        assert "another text" in json.dumps(answers[0].events[-1])

    other = Fake(tokens=12, salt=(1,))
    table.run(scenario, gpu={"reset": 1.0}, npu=other, rollout={"start": "manual"})


@pytest.mark.parametrize(
    "more",
    [{"n": 2}, {"logprobs": True}],
)
def test_what_cannot_be_resumed_exactly_ends_visibly(table: Table, more: dict[str, Any]) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask(**more)
        assert answer.outcome == "error"
        assert bench.npu.seen == 0

    table.run(scenario, gpu={"reset": 1.0}, rollout={"start": "manual"})


def test_content_is_never_cut_and_no_failure(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for stream in (True, False):
            said = await bench.ask(stream=stream)
            assert (said.outcome, said.text.endswith("!" * 40)) == ("ok", True)
        assert bench.gateway.rollout.primary.failures == 0

    table.run(scenario, gpu={"garbage": 1.0}, rollout={"start": "manual"})


def test_what_both_say_is_no_garbage(table: Table) -> None:
    """A client that asks for twenty exclamation marks gets them."""

    async def scenario(bench: Bench) -> None:
        whole = await bench.ask(stream=False)
        assert (whole.status, whole.outcome) == (200, "ok")
        assert whole.text.endswith("!" * 40)
        rollout = bench.gateway.rollout
        assert rollout.primary.failures == 0

    both = {"garbage": 1.0}
    table.run(scenario, gpu=both, npu=both, rollout={"start": "manual"})


@pytest.mark.parametrize("kind", ["invalid_json", "cut", "reset", "truncate", "missing_finish"])
def test_a_broken_whole_answer_is_asked_for_elsewhere(table: Table, kind: str) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask(stream=False)
        assert (answer.outcome, answer.text) == ("ok", bench.expected())

    table.run(scenario, gpu={kind: 1.0}, rollout={"start": "manual"})


def test_a_healthy_stream_is_relayed_byte_for_byte(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        through = await bench.ask(stream_options={"include_usage": True})
        body = {**bench.gpu.bodies[0]}
        async with bench.session.post(f"{bench.gpu.url}/v1/chat/completions", json=body) as direct:
            assert await direct.read() == through.raw

    table.run(scenario, rollout={"start": "manual"})


def test_a_clients_mistake_is_not_the_backends(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask(model="unknown")
        assert answer.status == 404
        assert (bench.gpu.seen, bench.npu.seen) == (1, 1), "the other one is asked as a witness"
        rollout = bench.gateway.rollout
        assert (rollout.primary.requests, rollout.total.requests) == (0, 0)
        assert bench.outcomes() == {"client_error": 1}

    table.run(scenario, rollout={"start": "manual"})


def test_a_client_that_goes_away_is_nobodys_failure(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        body = {"stream": True, "messages": []}
        url = bench.url + "/v1/chat/completions"
        response = await bench.session.post(url, json=body)
        await response.content.readany()
        response.close()
        while not bench.outcomes():
            await asyncio.sleep(0.01)
        assert bench.outcomes() == {"client_closed": 1}
        assert bench.gateway.rollout.primary.failures == 0
        assert bench.gateway.router.primary.inflight == 0

    table.run(scenario, gpu=Fake(tokens=200, gap_seconds=0.02), rollout={"start": "manual"})


def test_a_step_says_that_its_standby_turns_requests_away(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(8):
            assert (await bench.ask(f"{number}")).upstream == "gpu"
        assert bench.npu.seen
        said = f"requests of this step; the standby was too busy for {bench.npu.seen} requests"
        assert bench.gateway.rollout.missing(1e12).endswith(said)

    table.run(scenario, npu={"busy": 1.0}, rollout=ramp(90, 100, min_step_requests=10))


def test_when_all_are_busy_the_client_hears_when_to_come_back(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask()
        assert answer.status == 429
        assert answer.headers["Retry-After"] == "1"
        assert bench.outcomes() == {"rejected": 1}

    table.run(scenario, gpu={"busy": 1.0}, npu={"busy": 1.0}, rollout={"start": "manual"})


def test_when_all_fail_the_client_gets_the_backends_own_words(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask()
        assert answer.status == 500
        assert b"injected" in answer.raw
        assert bench.outcomes() == {"error": 1}

    table.run(
        scenario, gpu={"status_500": 1.0}, npu={"status_500": 1.0}, rollout={"start": "manual"}
    )


def test_slow_is_not_broken(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask()
        assert (answer.outcome, answer.upstream) == ("ok", "gpu")
        assert bench.gateway.rollout.primary.failures == 0

    table.run(scenario, gpu={"drip": 1.0}, rollout={"start": "manual"})


def test_one_user_keeps_one_backend(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for user in range(40):
            asked = [bench.ask(user=f"user {user}") for _ in range(3)]
            assert len({answer.upstream for answer in await asyncio.gather(*asked)}) == 1
        assert bench.npu.seen > 0
        assert bench.gpu.seen > 0

    table.run(scenario, rollout=ramp(50))


def test_without_a_user_the_weight_is_kept_closely(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(100):
            await bench.ask(stream=False)
        assert bench.npu.seen in (19, 20, 21)

    table.run(scenario, rollout=ramp(20))


def test_a_full_backend_lets_requests_wait_and_then_refuses_them(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        answers = await asyncio.gather(*(bench.ask() for _ in range(6)))
        # Two run at a time for about 0.24 s, two wait, the queue is full for the rest, which the
        # standby takes; it is as narrow.
        statuses = sorted(answer.status for answer in answers)
        assert statuses.count(200) >= 4
        assert bench.gateway.router.primary.inflight == 0
        assert bench.gateway.router.standby.inflight == 0

    narrow = {"connections": 1}
    table.run(
        scenario, gpu=Fake(tokens=12, gap_seconds=0.02), npu=Fake(tokens=12, gap_seconds=0.02),
        gpu_more=narrow, npu_more=narrow, rollout={"start": "manual"},
        limits={"queue": 1, "queue_seconds": 5.0},
    )  # fmt: skip


def test_waiting_has_a_deadline(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.order("rollback")  # nobody else may answer
        first = asyncio.create_task(bench.ask())
        while not bench.gpu.seen:
            await asyncio.sleep(0.005)
        second = await bench.ask()
        assert (second.status, second.headers["Retry-After"]) == (503, "1")
        await first
        assert bench.gateway.router.primary.inflight == 0

    table.run(
        scenario, gpu=Fake(tokens=30, gap_seconds=0.02), gpu_more={"connections": 1},
        rollout={"start": "manual"}, limits={"queue_seconds": 0.05, "attempts": 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "body", "status"),
    [({"body_bytes": 1000}, "x" * 2000, 413)],
)
def test_a_request_stays_within_its_limits(
    table: Table, limits: dict[str, Any], body: str, status: int
) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask(body)
        assert answer.status == status
        assert bench.gpu.seen == 0
        assert bench.outcomes() == {"rejected": 1}

    table.run(scenario, rollout={"start": "manual"}, limits=limits)


def test_a_body_that_trickles_in_is_given_up(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.gateway.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()

    table.run(scenario, rollout={"start": "manual"}, limits={"body_seconds": 0.05})


def test_a_header_has_its_limit(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask(headers={"X-Long": "y" * 5000})
        assert answer.status == 400
        assert bench.gpu.seen == 0

    table.run(scenario, rollout={"start": "manual"}, limits={"header_bytes": 2000})


def test_a_key_is_needed_where_keys_are_set(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        assert (await bench.ask()).status == 401
        good = await bench.ask(headers={"Authorization": "Bearer secret"})
        assert good.outcome == "ok"

    table.run(scenario, rollout={"start": "manual"}, keys=["secret"])


def test_other_paths_go_through(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        assert (await bench.get("/v1/models"))["data"] == [{"id": "fake"}]
        assert bench.gateway.rollout.primary.requests == 0, "a list is no evidence"

    table.run(scenario, rollout={"start": "manual"})


def test_two_servers_of_one_upstream_share_its_load(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        second = Fake(tokens=12)
        await second.start()
        primary = bench.gateway.router.primary
        primary.instances[1].url = second.url
        while not primary.instances[1].up:
            await asyncio.sleep(0.01)
        await asyncio.gather(*(bench.ask() for _ in range(10)))
        assert bench.gpu.seen > 0
        assert second.seen > 0
        await second.stop()

    gpu = Fake(tokens=12, gap_seconds=0.005)

    async def whole() -> None:
        await gpu.start()

    asyncio.run(whole())
    asyncio.run(gpu.stop())
    table.run(
        scenario, gpu=gpu, rollout={"start": "manual"},
        gpu_more={"urls": [f"http://127.0.0.1:{gpu.port}", "http://127.0.0.1:9"]},
    )  # fmt: skip


OLD = {
    "plain": b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    "silent": b"HTTP/1.0 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("head", OLD)
@pytest.mark.parametrize("whole", [True, False])
def test_a_server_of_the_old_school_is_read_and_judged(
    table: Table, head: str, whole: bool
) -> None:
    """HTTP/1.0, the end of the connection is the end of the answer, perhaps without its type."""
    sent = (
        b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": null}]}\n\n'
    )
    end = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    sent += (end + b"data: [DONE]\n\n") if whole else b""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"GET"):
            writer.write(b"HTTP/1.0 501 Unsupported method\r\n\r\n")
        else:
            writer.write(OLD[head] + sent)
        await writer.drain()
        writer.close()

    async def scenario(bench: Bench) -> None:
        old = await asyncio.start_server(answer, "127.0.0.1", 0)
        instance = bench.gateway.router.primary.instances[0]
        instance.url = f"http://127.0.0.1:{old.sockets[0].getsockname()[1]}"
        got = await bench.ask()
        assert bench.gateway.rollout.primary.failures == (0 if whole else 1)
        assert (got.outcome, got.text) == (("ok", "Hi") if whole else ("error", "Hi"))
        old.close()

    table.run(scenario, rollout={"start": "manual"})


def test_a_large_body_that_waits_for_permission_gets_it(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.gateway.port)
        body = b'{"messages": [], "stream": false}'
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        )
        assert b" 100 " in await reader.readline()
        assert await reader.readline() == b"\r\n"
        writer.write(body)
        assert b" 200 " in await reader.readline()
        writer.close()

    table.run(scenario, rollout={"start": "manual"})


def test_a_backend_that_takes_no_ids_is_asked_the_whole_question(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        answer = await bench.ask(max_tokens=12)
        assert (answer.outcome, answer.text) == ("ok", bench.expected(max_tokens=12))
        assert "messages" in bench.npu.bodies[-1]
        assert bench.gateway.rollout.total.failures == 0, "declining is not failing"

    table.run(
        scenario, gpu={"reset": 1.0}, npu=Fake(tokens=12, keep_bodies=True, takes_ids=False),
        gpu_more={"token_ids": "ask"}, rollout={"start": "manual"},
    )  # fmt: skip


@pytest.mark.dear
def test_a_client_that_leaves_during_a_takeover_is_counted_once(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        body = {"stream": True, "messages": [{"role": "user", "content": "x"}], "max_tokens": 300}
        response = await bench.session.post(bench.url + "/v1/chat/completions", json=body)
        while not bench.npu.seen:
            await response.content.readany()
        response.close()
        while not bench.outcomes():
            await asyncio.sleep(0.01)
        assert bench.outcomes() == {"client_closed": 1}
        assert bench.gateway.router.standby.inflight == 0

    table.run(
        scenario, gpu=Fake(Schedule((Fault("reset"),), name="gpu"), tokens=300, gap_seconds=0.001),
        npu=Fake(tokens=300, gap_seconds=0.02), rollout={"start": "manual"},
    )  # fmt: skip


def triton(*events: bytes) -> Any:
    """A server that answers everything with these events."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        else:
            kind = b"content-type: text/event-stream\r\nconnection: close\r\n\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"".join(events))
        await writer.drain()
        writer.close()

    return answer


TRITON_GOOD = b'data: {"model_name": "m", "text_output": "Hi"}\n\n'
TRITON_BAD = b'data: {"error": "out of memory"}\n\n'


@pytest.mark.parametrize(
    ("first", "got"),
    [
        ((TRITON_GOOD, TRITON_GOOD), TRITON_GOOD * 2),
        ((TRITON_BAD,), TRITON_GOOD),  # asked elsewhere before the client saw anything
        ((TRITON_GOOD, TRITON_BAD), None),  # cannot be resumed: visible
    ],
)
def test_triton_streams_are_judged_too(
    table: Table, first: tuple[bytes, ...], got: bytes | None
) -> None:
    async def scenario(bench: Bench) -> None:
        servers = []
        for upstream, events in (
            (bench.gateway.router.primary, first),
            (bench.gateway.router.standby, (TRITON_GOOD,)),
        ):
            server = await asyncio.start_server(triton(*events), "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            upstream.instances[0].url = f"http://127.0.0.1:{port}"
            servers.append(server)
        url = bench.url + "/v2/models/m/generate_stream"
        async with bench.session.post(url, json={"text_input": "x"}) as reply:
            body = await reply.read()
        if got is None:
            assert body.startswith(TRITON_GOOD)
            assert b'"stream_interrupted"' in body
        else:
            assert body == got
        assert bench.gateway.rollout.primary.failures == (TRITON_BAD in first)
        for server in servers:
            server.close()

    table.run(scenario, rollout={"start": "manual"})


MISTAKES = ["status_400", "status_401", "status_404", "redirect", "html", "no_body", "no_content",
            "bare_object", "silent"]  # fmt: skip


@pytest.mark.dear
@pytest.mark.parametrize("side", ["gpu", "npu"])
@pytest.mark.parametrize("kind", [*MISTAKES, "wrong_type"])
def test_no_client_sees_what_only_one_backend_gets_wrong(
    table: Table, kind: str, side: str
) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(4):
            answer = await bench.ask(f"{number}", stream=number % 2 == 0, temperature=0)
            assert (answer.outcome, answer.text) == ("ok", bench.expected(f"{number}"))
        rollout = bench.gateway.rollout
        if side == "npu":
            assert rollout.total.requests == rollout.total.failures > 0, "it proves nothing good"
        if kind != "wrong_type":  # the primary's own odd type is taken as it is
            assert {"gpu": rollout.primary, "npu": rollout.total}[side].failures or (
                rollout.answers.against or rollout.answers.judged
            )

    table.run(scenario, **{side: {kind: 1.0}}, rollout=ramp(99 if side == "npu" else 1))


def test_where_both_backends_say_nothing_that_is_the_answer(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for stream in (True, False):
            answer = await bench.ask(stream=stream, temperature=0)
            assert (answer.status, answer.outcome, answer.text) == (200, "ok", "")
        assert bench.gateway.rollout.total.requests == 0

    table.run(scenario, gpu={"silent": 1.0}, npu={"silent": 1.0}, rollout=ramp(50))
