"""The door for Envoy's `ext_proc` filter, asked by a real gRPC client that acts as Envoy does."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub

from tests.run.serve.gateway.conftest import Bench, Table, ramp
from tests.run.serve.gateway.fake import Fake
from tests.run.serve.gateway.faults import Schedule

DOOR = {"envoy": "127.0.0.1:0"}
HALF = ramp(50, min_step_requests=1000)
CHAT = "/v1/chat/completions"


def head(headers: dict[str, str], *, end: bool = False) -> Any:
    rows = [HeaderValue(key=name, raw_value=value.encode()) for name, value in headers.items()]
    return wire.HttpHeaders(headers=HeaderMap(headers=rows), end_of_stream=end)


class Proxy:
    """What Envoy does for one request after the other."""

    def __init__(self, bench: Bench, channel: Any) -> None:
        self.bench, self.stub = bench, ExternalProcessorStub(channel)

    async def ask(self, path: str = CHAT, *, leave: bool = False, **more: Any) -> tuple[str, int]:
        """(The arm, the status that the client gets)."""
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
        call = self.stub.Process()
        await call.write(wire.ProcessingRequest(request_headers=head(
            {":method": "POST", ":path": path, "content-type": "application/json"}
        )))  # fmt: skip
        assert (await call.read()).WhichOneof("response") == "request_headers"
        sent = json.dumps(body).encode()
        await call.write(wire.ProcessingRequest(
            request_body=wire.HttpBody(body=sent, end_of_stream=True)
        ))  # fmt: skip
        told = await call.read()
        if told.WhichOneof("response") == "immediate_response":
            return "", int(told.immediate_response.status.code)
        common = told.request_body.response
        (arm,) = common.header_mutation.set_headers
        assert (common.clear_route_cache, arm.header.key) == (True, "x-joymigrate-arm")
        name = arm.header.raw_value.decode()
        fake = {"gpu": self.bench.gpu, "npu": self.bench.npu}[name]
        async with self.bench.session.post(fake.url + path, data=sent) as reply:
            headers = {":status": str(reply.status), "content-type": reply.content_type}
            await call.write(wire.ProcessingRequest(response_headers=head(headers)))
            await call.read()
            async for block in reply.content.iter_any():
                if leave:
                    call.cancel()
                    return name, reply.status
                await self.pass_on(call, block, end=False)
            await self.pass_on(call, b"", end=True)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        return name, reply.status

    async def pass_on(self, call: Any, block: bytes, *, end: bool) -> None:
        await call.write(wire.ProcessingRequest(
            response_body=wire.HttpBody(body=block, end_of_stream=end)
        ))  # fmt: skip
        told = await call.read()
        assert not told.response_body.response.HasField("body_mutation")


def carry(table: Table, scenario: Any, **sections: Any) -> None:
    async def whole(bench: Bench) -> None:
        assert bench.gateway.envoy is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{bench.gateway.envoy.port}") as channel:
            await scenario(bench, Proxy(bench, channel))

    table.run(whole, **{"rollout": HALF, **DOOR, **sections})


def test_arms_follow_the_weight_and_good_answers_are_evidence(table: Table) -> None:
    async def scenario(bench: Bench, proxy: Proxy) -> None:
        arms = [(await proxy.ask(stream=number % 2 == 0))[0] for number in range(20)]
        rollout = bench.gateway.rollout
        assert arms.count("npu") == rollout.total.requests > 0
        assert arms.count("gpu") == rollout.primary.requests > 0
        assert rollout.total.failures == rollout.primary.failures == 0
        again = {(await proxy.ask(user="same"))[0] for _ in range(4)}
        assert len(again) == 1
        assert bench.outcomes() == {"ok": 24}

    carry(table, scenario)


@pytest.mark.parametrize("kind", ["status_500", "truncate", "error_midway", "invalid_json"])
def test_a_standby_that_breaks_is_rolled_back_and_gets_no_more(table: Table, kind: str) -> None:
    async def scenario(bench: Bench, proxy: Proxy) -> None:
        for number in range(60):
            await proxy.ask(user=f"user {number}", stream=True)
        assert bench.gateway.rollout.state == "rolled_back"
        assert kind in str(bench.gateway.rollout.last_kinds) or kind != "status_500"
        assert (await proxy.ask())[0] == "gpu"

    carry(table, scenario, npu={kind: 1.0})


def test_a_standby_that_refuses_what_the_primary_answers_is_rolled_back(table: Table) -> None:
    async def scenario(bench: Bench, proxy: Proxy) -> None:
        for number in range(200):
            await proxy.ask(user=f"user {number}", stream=False)
            if bench.gateway.rollout.state != "ramping":
                break
        assert bench.gateway.rollout.state == "rolled_back"
        assert "status 404" in bench.gateway.rollout.changes[-1].text
        assert bench.gateway.rollout.total.failures == 0

    carry(table, scenario, npu={"status_404": 1.0})


def test_a_client_that_leaves_is_no_failure(table: Table) -> None:
    async def scenario(bench: Bench, proxy: Proxy) -> None:
        for _ in range(10):
            await proxy.ask(stream=True, leave=True)
        for _ in range(100):
            if bench.outcomes().get("client_closed") == 10:
                break
            await proxy.ask()
        assert bench.outcomes()["client_closed"] == 10
        assert bench.gateway.rollout.total.failures == 0
        assert bench.gateway.rollout.state == "ramping"
        assert all(up.instances[0].inflight == 0 for up in
                   (bench.gateway.router.primary, bench.gateway.router.standby))  # fmt: skip

    carry(table, scenario, gpu=Fake(Schedule(), 12, 0.01), npu=Fake(Schedule(), 12, 0.01))


@pytest.mark.parametrize(
    ("path", "status"),
    [("/shutdown", 403), ("/v1/../shutdown", 404), ("/admin/rollout", 404), ("/v1/files", 404),
     ("/update_weights_from_disk", 403)],
)  # fmt: skip
def test_paths_that_are_not_for_clients_reach_no_backend(
    table: Table, path: str, status: int
) -> None:
    async def scenario(bench: Bench, proxy: Proxy) -> None:
        assert await proxy.ask(path) == ("", status)
        assert bench.gpu.seen == bench.npu.seen == 0

    carry(table, scenario)


def test_a_key_is_needed_where_the_gateway_has_keys(table: Table) -> None:
    async def scenario(bench: Bench, proxy: Proxy) -> None:
        assert await proxy.ask() == ("", 401)

    carry(table, scenario, keys=["secret"])


def test_a_body_that_is_no_object_is_refused_here(table: Table) -> None:
    async def scenario(bench: Bench, proxy: Proxy) -> None:
        call = proxy.stub.Process()
        await call.write(wire.ProcessingRequest(
            request_headers=head({":method": "POST", ":path": CHAT}, end=True)
        ))  # fmt: skip
        told = (await call.read()).immediate_response
        assert told.status.code == 400
        assert "a JSON object" in told.body.decode()

    carry(table, scenario)
