"""KServe v2 with NVIDIA's own clients, the JSON endpoint, and every kind of bad input."""

from __future__ import annotations

import json
import queue
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.grpc import service_pb2

from benchmarks import ranking_example as example
from joymigrate.run.serve.kserve.rpc import read_inputs
from joymigrate.run.serve.ranking.meters import compilations
from joymigrate.run.serve.web.errors import HttpRefusal

Serve = Callable[..., Any]


def arrays(candidates: int = 4, length: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: one.numpy() for name, one in example.request(candidates, length, seed).items()}


def expected(din: Any, given: dict[str, np.ndarray]) -> np.ndarray:
    count, length = len(given["item"]), given["history"].shape[1]
    whole = {**given, "lengths": np.array([length]), "owner": np.zeros(count, np.int64)}
    return din.run(whole)[0].numpy()


def inputs(client: Any, given: dict[str, np.ndarray], **options: Any) -> list[Any]:
    made = []
    for name, array in given.items():
        kind = {"int64": "INT64", "float32": "FP32", "int32": "INT32"}[array.dtype.name]
        one = client.InferInput(name, list(array.shape), kind)
        one.set_data_from_numpy(array, **options)
        made.append(one)
    return made


def post(url: str, body: Any) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(url, raw, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("binary", [True, False])
def test_triton_http_gets_the_models_scores(serve: Serve, din: Any, binary: bool) -> None:
    running = serve()
    client = httpclient.InferenceServerClient(running.url.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("din")
    told = client.get_model_metadata("din")
    assert [one["name"] for one in told["inputs"]][:2] == ["item", "user"]
    assert client.get_model_repository_index()[0]["state"] == "READY"
    wanted = [httpclient.InferRequestedOutput("score", binary_data=binary)]
    for seed, shape in enumerate([(1, 1), (5, 0), (20, 50)]):
        given = arrays(*shape, seed)
        found = client.infer(
            "din", inputs(httpclient, given, binary_data=binary), outputs=wanted, request_id="7"
        )
        assert found.get_response()["id"] == "7"
        assert found.get_response()["model_version"] == "1"
        np.testing.assert_allclose(found.as_numpy("score"), expected(din, given), atol=1e-6)


def test_triton_grpc_gets_the_models_scores(serve: Serve, din: Any) -> None:
    running = serve()
    client = grpcclient.InferenceServerClient(running.grpc)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("din")
    assert client.get_server_metadata().name == "joymigrate"
    told = client.get_model_metadata("din")
    assert list(told.inputs[0].shape) == [-1, 5]
    assert client.get_model_repository_index().models[0].name == "din"
    given = arrays(9, 13)
    found = client.infer("din", inputs(grpcclient, given), request_id="8",
                         parameters={"user": "u1", "deadline_ms": 60_000})  # fmt: skip
    assert found.get_response().id == "8"
    assert found.get_response().model_version == "1"
    np.testing.assert_allclose(found.as_numpy("score"), expected(din, given), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"item": None}, "item"),
        ({"item": np.zeros((4, 5), np.int32)}, "item"),
        ({"item": np.zeros((4, 6), np.int64)}, "item"),
        ({"item": np.zeros((0, 5), np.int64)}, "item"),
        ({"item": np.full((4, 5), 500)}, "item"),
        ({"item": np.full((4, 5), -1)}, "item"),
        ({"history": np.full((1, 6), example.ITEMS)}, "history"),
        ({"history": np.zeros(6, np.int64)}, "history"),
        ({"owner": np.array([0, 0, 0, 1])}, "owner"),
        ({"owner": np.array([0, 0, 0])}, "owner"),
        ({"lengths": np.array([7])}, "lengths"),
        ({"lengths": np.array([-1])}, "lengths"),
        ({"nonsense": np.array([1])}, "nonsense"),
        ({"user": np.zeros((2, 3), np.int64)}, "history"),
        ({"user": np.zeros((2, 3), np.int64), "history": np.zeros((2, 6), np.int64)}, "owner"),
    ],
)
def test_bad_input_is_refused_with_the_inputs_name(
    serve: Serve, change: dict[str, Any], word: str
) -> None:
    running = serve()
    given = {name: one for name, one in {**arrays(), **change}.items() if one is not None}
    http = httpclient.InferenceServerClient(running.url.removeprefix("http://"))
    with pytest.raises(Exception, match=word) as refused:
        http.infer("din", inputs(httpclient, given))
    assert str(refused.value).startswith("[400]")
    rpc = grpcclient.InferenceServerClient(running.grpc)
    with pytest.raises(Exception, match=word) as refused:
        rpc.infer("din", inputs(grpcclient, given))
    assert "INVALID_ARGUMENT" in str(refused.value)


@pytest.mark.parametrize("place", ["item", "history"])
def test_a_truth_value_among_ids_is_no_id(serve: Serve, place: str) -> None:
    given = {name: one.tolist() for name, one in arrays().items()}
    given[place][-1][-1] = True
    status, said = post(serve().url + "/v1/rank", {"inputs": given})
    assert (status, said["error"]["param"]) == (400, place)


def test_a_shape_of_too_many_dimensions_names_the_input(serve: Serve) -> None:
    row = {"name": "item", "datatype": "INT64", "shape": [1, 5, *[1] * 100], "data": [0] * 5}
    status, said = post(serve().url + "/v2/models/din/infer", {"inputs": [row]})
    assert status == 400
    assert "'item': the shape has 102 dimensions" in said["error"]


@pytest.mark.parametrize("bad", [True, "x", [], 0, -1, 10**400])
def test_a_deadline_is_a_number(serve: Serve, bad: Any) -> None:
    given = {name: one.tolist() for name, one in arrays().items()}
    status, said = post(serve().url + "/v1/rank", {"inputs": given, "deadline_ms": bad})
    assert (status, said["error"].get("param")) in ((400, "deadline_ms"), (400, None))


def test_values_that_come_twice_over_grpc_are_refused(serve: Serve) -> None:
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    asked = service_pb2.ModelInferRequest(model_name="din")
    for name, array in arrays().items():
        row = asked.inputs.add(name=name, datatype="INT64", shape=array.shape)
        asked.raw_input_contents.append(array.tobytes())
    row.contents.int64_contents.extend([1])
    with grpc.insecure_channel(serve().grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="came twice"):
            stub.ModelInfer(asked, timeout=30)


def test_values_in_the_list_of_another_type_are_refused(serve: Serve) -> None:
    asked = service_pb2.ModelInferRequest(model_name="din")
    for name, array in arrays().items():
        one = asked.inputs.add(name=name, datatype="INT64", shape=array.shape)
        one.contents.int64_contents.extend(array.ravel().tolist())
    assert read_inputs(asked)["item"].shape == arrays()["item"].shape
    asked.inputs[0].contents.int_contents.append(7)
    with pytest.raises(HttpRefusal, match="comes in int64_contents, there is int_contents"):
        read_inputs(asked)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"id": 7}, "id"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"binary_data_output": "yes"}}, "binary_data_output"),
        ({"outputs": [{"name": "score", "parameters": [1]}]}, "outputs[0].parameters"),
        ({"outputs": [{"name": "score", "parameters": {"binary_data": 1}}]}, "binary_data"),
    ],
)
def test_odd_parameters_are_named(serve: Serve, more: Any, param: str) -> None:
    tensors = [
        {"name": name, "datatype": "INT64", "shape": one.shape, "data": one.ravel().tolist()}
        for name, one in arrays().items()
    ]
    url = serve().url + "/v2/models/din/"
    assert post(url + "infer", {"inputs": tensors, "id": "7"})[1]["id"] == "7"
    status, said = post(url + "infer", {"inputs": tensors, **more})
    assert status == 400
    assert param in said["error"]
    assert post(url + "generate", {})[0] == 404


def test_an_unknown_model_or_version_is_not_found(serve: Serve) -> None:
    running = serve()
    http = httpclient.InferenceServerClient(running.url.removeprefix("http://"))
    for model, version in (("other", ""), ("din", "9")):
        with pytest.raises(Exception, match="404"):
            http.infer(model, inputs(httpclient, arrays()), model_version=version)
        rpc = grpcclient.InferenceServerClient(running.grpc)
        with pytest.raises(Exception, match="NOT_FOUND"):
            rpc.infer(model, inputs(grpcclient, arrays()), model_version=version)


def test_the_json_endpoint_ranks(serve: Serve, din: Any) -> None:
    running = serve()
    given = arrays(3, 2)
    body = {"inputs": {name: one.tolist() for name, one in given.items()}, "user": 17}
    status, found = post(f"{running.url}/v1/rank", body)
    assert status == 200
    assert found["model_version"] == "1"
    np.testing.assert_allclose(found["outputs"]["score"], expected(din, given), atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        ({"inputs": {"item": [[1.5] * 5]}}, "item"),
        ({"inputs": {"item": [[1, 2], [3]]}}, "item"),
        ({"inputs": {"item": [[None] * 5]}}, "item"),
        ({"inputs": {"item": "x"}}, "item"),
        ({"inputs": {"item": [[2**70] * 5]}}, "item"),
        ({"inputs": {}}, "item"),
        ({"inputs": [], "user": "a"}, "inputs"),
        ({"inputs": {}, "users": "a"}, "users"),
        ({"inputs": {}, "user": [1]}, "user"),
        ({"inputs": {}, "deadline_ms": "soon"}, "deadline_ms"),
        ({"inputs": {}, "deadline_ms": -1}, "deadline_ms"),
    ],
)
def test_the_json_endpoint_names_the_field(serve: Serve, body: Any, param: str | None) -> None:
    status, found = post(f"{serve().url}/v1/rank", body)
    assert status == 400
    assert found["error"]["param"] == param


def test_an_empty_history_needs_no_shape_in_json(serve: Serve, din: Any) -> None:
    given = arrays(2, 0)
    body = {"inputs": {name: one.tolist() for name, one in given.items()}}
    status, found = post(f"{serve().url}/v1/rank", body)
    assert status == 200
    np.testing.assert_allclose(found["outputs"]["score"], expected(din, given), atol=1e-6)


def test_a_body_beyond_the_limit_is_refused(serve: Serve) -> None:
    port = int(serve().url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"POST /v1/rank HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
        head = client.recv(2**16)
    assert b" 413 " in head.splitlines()[0]
    assert b"bytes" in head


def test_health_ready_and_metrics(serve: Serve) -> None:
    before = compilations()  # of the tests in this process
    running = serve()
    post(f"{running.url}/v1/rank", {"inputs": {n: o.tolist() for n, o in arrays().items()}})
    for path in ("health", "ready", "v2/health/live", "v2/health/ready", "v1/models", "v2"):
        with urllib.request.urlopen(f"{running.url}/{path}", timeout=10) as reply:
            assert reply.status == 200
    with urllib.request.urlopen(f"{running.url}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    assert 'joymigrate_requests_total{outcome="ok"} 1.0' in text
    assert "joymigrate_ranking_batches_total 1.0" in text
    assert f"joymigrate_ranking_compilations_total {before}" in text
    assert 'joymigrate_ranking_version{version="1"} 1.0' in text


def test_grpc_over_tls_asks_for_a_clients_certificate(din: Any, tmp_path: Path) -> None:
    import asyncio

    from joymigrate.run.serve.kserve import rpc
    from joymigrate.run.serve.ranking.lanes import RankingEngine
    from joymigrate.run.serve.ranking.meters import RankingMeters
    from joymigrate.run.serve.ranking.service import RankingService
    from joymigrate.run.serve.web.tls import Tls
    from tests.run.serve.test_web import make_certificates

    make_certificates(tmp_path)
    engine = RankingEngine(din)
    engine.start()

    def paths(*names: str) -> list[Path]:
        return [tmp_path / name for name in names]

    async def ask() -> Any:
        server, port = await rpc.start(
            RankingService(engine, ("din",), RankingMeters(engine)), "127.0.0.1", 0,
            Tls(*paths("server.pem", "server.key", "ca.pem")),
        )  # fmt: skip
        given = arrays()

        def client(*more: str) -> Any:
            known = dict(zip(("certificate_chain", "private_key"), map(str, paths(*more)),
                             strict=False))  # fmt: skip
            rpc_client = grpcclient.InferenceServerClient(
                f"127.0.0.1:{port}", ssl=True, root_certificates=str(tmp_path / "ca.pem"), **known
            )
            return rpc_client.infer("din", inputs(grpcclient, given)).as_numpy("score")

        found = await asyncio.to_thread(client, "client.pem", "client.key")
        np.testing.assert_allclose(found, expected(din, given), atol=1e-6)
        with pytest.raises(Exception, match=r"(?i)ssl|handshake|unavailable|closed|connect"):
            await asyncio.to_thread(client)
        await server.stop(None)

    asyncio.run(ask())
    engine.close()


def test_a_triton_stream_answers_in_order_and_words_its_errors(serve: Serve, din: Any) -> None:
    running = serve()
    client = grpcclient.InferenceServerClient(running.grpc)
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: found.put((result, error)))
    given = [arrays(candidates=1 + place) for place in range(8)]
    for place, one in enumerate(given):
        sent = {**one, "item": -one["item"] - 1} if place == 3 else one
        client.async_stream_infer("din", inputs(grpcclient, sent), request_id=str(place))
    for place, one in enumerate(given):
        result, error = found.get(timeout=30)
        if place == 3:
            assert "is negative" in str(error)
            continue
        assert error is None
        assert result.get_response().id == str(place)
        np.testing.assert_allclose(result.as_numpy("score"), expected(din, one), atol=1e-6)
    client.stop_stream()


def test_bfloat16_inputs_come_as_bytes_and_as_numbers(serve: Serve, tmp_path: Path) -> None:
    import torch

    from joymigrate.run.serve.ranking import program

    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.float().sum(-1) * (x.dtype == torch.bfloat16)

    made = torch.export.export(
        Halves(), (), kwargs={"x": torch.zeros(4, 3, dtype=torch.bfloat16)},
        dynamic_shapes={"x": {0: torch.export.Dim("count")}},
    )  # fmt: skip
    torch.export.save(made, tmp_path / "halves.pt2")
    running = serve(program.load(tmp_path / "halves.pt2"))
    x = torch.tensor([[0.1, 2.0, 3.0], [1.0, 1.0, 1.0]]).to(torch.bfloat16)
    wanted = x.float().sum(-1).tolist()
    status, found = post(f"{running.url}/v1/rank", {"inputs": {"x": x.float().tolist()}})
    assert (status, found["outputs"]["score"]) == (200, pytest.approx(wanted))
    data = x.view(torch.int16).numpy().tobytes()
    row = {"name": "x", "shape": [2, 3], "datatype": "BF16"}
    size = {"parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [{**row, **size}]}).encode()
    asked = urllib.request.Request(
        f"{running.url}/v2/models/din/infer", head + data,
        {"Inference-Header-Content-Length": str(len(head))},
    )  # fmt: skip
    with urllib.request.urlopen(asked, timeout=30) as reply:
        assert json.loads(reply.read())["outputs"][0]["data"] == pytest.approx(wanted)
    http = httpclient.InferenceServerClient(running.url.removeprefix("http://"))
    assert http.get_model_metadata("din")["inputs"][0]["datatype"] == "BF16"


def test_configuration_and_statistics_as_tritons_clients_read_them(serve: Serve) -> None:
    running = serve()
    http = httpclient.InferenceServerClient(running.url.removeprefix("http://"))
    rpc = grpcclient.InferenceServerClient(running.grpc)
    for _ in range(3):
        http.infer("din", inputs(httpclient, arrays()))
    with pytest.raises(Exception, match="item"):
        http.infer("din", inputs(httpclient, {**arrays(), "item": np.zeros((4, 5), np.float32)}))
    config = http.get_model_config("din")
    assert [one["name"] for one in config["input"]] == [
        "item", "user", "history", "lengths", "owner"
    ]  # fmt: skip
    assert config["input"][0] == {"name": "item", "data_type": "TYPE_INT64", "dims": [-1, 5],
                                  "optional": False}  # fmt: skip
    assert config["input"][4]["optional"]
    same = rpc.get_model_config("din", as_json=True)["config"]
    assert [one["data_type"] for one in same["input"]] == ["TYPE_INT64"] * 5
    assert same["output"][0]["data_type"] == "TYPE_FP32"
    for said in (http.get_inference_statistics("din"), http.get_inference_statistics(),
                 rpc.get_inference_statistics("din", as_json=True),
                 rpc.get_inference_statistics(as_json=True)):  # fmt: skip
        row = said["model_stats"][0]
        assert int(row["inference_count"]) == 3
        assert int(row["execution_count"]) == 3
        assert int(row["inference_stats"]["success"]["count"]) == 3
        assert int(row["inference_stats"]["fail"]["count"]) == 1
        assert row["batch_stats"][0]["batch_size"] in (1, "1")
        assert int(row["batch_stats"][0]["compute_infer"]["ns"]) > 0
        assert int(row["last_inference"]) > 1_600_000_000_000
    with pytest.raises(Exception, match="unknown model"):
        http.get_model_config("other")
