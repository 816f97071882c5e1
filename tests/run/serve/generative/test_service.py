"""A generative recommender behind HTTP, on a model that `train export` wrote."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("aiohttp")

from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.beam import BeamSearch  # noqa: E402
from joymigrate.run.serve.generative import recommender, start  # noqa: E402
from joymigrate.run.serve.web.server import Server  # noqa: E402
from joymigrate.run.train.recommendation import sizes_of  # noqa: E402
from joymigrate.run.train.samples.job import TableSettings  # noqa: E402
from joymigrate.run.train.samples.lookup import Recommender  # noqa: E402
from joymigrate.run.train.samples.schema import Feature, FeatureSchema  # noqa: E402
from joymigrate.run.train.semantic_ids.codes import distinct  # noqa: E402

ITEMS, KNOWN = 60, 50  # the last ten items have no semantic id


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("onerec") / "shop"
    features = {
        "item": Feature("id", rows=ITEMS),
        "seen": Feature("sequence", table="item", length=8),
    }
    torch.manual_seed(0)
    codes = distinct(torch.arange(KNOWN), torch.randint(4, (KNOWN, 2)), (4, 4))
    schema = FeatureSchema(features, ("click",), dim=16)
    model = Recommender(schema, sizes_of({"model_type": "onerec"}), TableSettings(), 0, codes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    return folder


class Running:
    """A service on a free port, in a loop of its own thread."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.service = start.open_service(folder, beams=256)
        self.server = Server(self.service, port=0)
        self.call(self.server.start())

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        asked = urllib.request.Request(self.server.url + path, raw, headers or {})
        try:
            with urllib.request.urlopen(asked, timeout=30) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def running(exported: Path) -> Iterator[Running]:
    made = Running(exported)
    yield made
    made.call(made.server.stop())
    made.loop.call_soon_threadsafe(made.loop.stop)


def exact(folder: Path, history: list[int]) -> dict[int, float]:
    """The log-probability of every item, by the model's own teacher-forced forward."""
    served = recommender.load(folder)
    state, _ = recommender.CodeWriter(served).begin([history])[0]
    codes = served.semantic.codes
    logits = served.model.write(state.memory.repeated(len(codes)), codes)
    found = served.model.log_probability(logits, codes)[:, 0]
    return dict(zip(served.semantic.ids.tolist(), found.tolist(), strict=True))


def test_completions_are_the_likeliest_items(running: Running, exported: Path) -> None:
    history = [3, 55, 17, 17, 2]
    body = {"model": "shop", "prompt": history, "n": 5, "beam_width": 64, "logprobs": 1}
    status, answer = running.post("/v1/completions", body)
    assert status == 200
    known = exact(exported, history)
    best = sorted(known, key=lambda item: -known[item])[:5]
    assert [int(one["text"]) for one in answer["choices"]] == best
    for one in answer["choices"]:
        assert one["score"] == pytest.approx(known[one["item"]], abs=1e-4)
        assert sum(one["logprobs"]["token_logprobs"]) == pytest.approx(one["score"], abs=1e-4)
    rounds = len(answer["choices"][0]["token_ids"])
    assert answer["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 5 * rounds, "total_tokens": 5 + 5 * rounds
    }  # fmt: skip


def test_the_ranking_protocol_gives_the_same(running: Running, exported: Path) -> None:
    history = [9, 8, 7]
    known = exact(exported, history)
    few = [4, 11, 30, 49]
    best = sorted(few, key=lambda item: -known[item])
    inputs = {"history": history, "candidate": few}
    status, answer = running.post("/v1/rank", {"inputs": inputs, "n": 4})
    assert status == 200
    assert answer["outputs"]["item"] == best
    tensors = [
        {"name": name, "datatype": "INT64", "shape": [len(values)], "data": values}
        for name, values in inputs.items()
    ]
    body = {"id": "a", "inputs": tensors, "parameters": {"n": 4}}
    status, answer = running.post("/v2/models/shop/infer", body)
    assert (status, answer["id"]) == (200, "a")
    outputs = {one["name"]: one["data"] for one in answer["outputs"]}
    assert outputs["item"] == best
    assert outputs["score"] == pytest.approx([known[item] for item in best], abs=1e-4)


def test_many_at_once_answer_as_alone(running: Running) -> None:
    bodies = [{"model": "shop", "prompt": [n, n + 1], "n": 3} for n in range(40)]
    alone = [running.post("/v1/completions", body)[1]["choices"] for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        together = [x[1]["choices"] for x in pool.map(
            lambda body: running.post("/v1/completions", body), bodies)]  # fmt: skip
    assert [[c["item"] for c in one] for one in together] == [[c["item"] for c in a] for a in alone]


def read_events(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, whose last is [DONE]."""
    asked = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(asked, timeout=30) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in reply.read().decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def rounded(value: Any) -> Any:
    """The same with five places of every number."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 5) if isinstance(value, float) else value


def test_a_stream_has_an_event_an_item(running: Running) -> None:
    body = {"model": "shop", "prompt": [[3, 4], [9]], "n": 3, "logprobs": 1}
    _, whole = running.post("/v1/completions", body)
    more = {"stream": True, "stream_options": {"include_usage": True}}
    *events, last = read_events(running.server.url, {**body, **more})
    choices = [one for event in events for one in event["choices"]]
    # Requests are computed with whatever waits beside them: the last bits of scores may differ.
    came = sorted(choices, key=lambda one: one["index"])
    assert rounded(came) == rounded(whole["choices"])
    assert all(event["usage"] is None and event["id"] == last["id"] for event in events)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


def test_grpc_gives_the_same(running: Running) -> None:
    grpc = pytest.importorskip("grpc")
    from tritonclient.grpc import service_pb2 as kserve

    from joymigrate.run.serve.kserve import rpc

    server, port = running.call(rpc.start(running.service, "127.0.0.1", 0))

    def call(channel: Any, name: str, message: Any) -> Any:
        return channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            getattr(kserve, f"{name}Request").SerializeToString,
            getattr(kserve, f"{name}Response").FromString,
        )(message, timeout=30)  # fmt: skip

    _, want = running.post("/v1/rank", {"inputs": {"history": [9, 8, 7]}, "n": 4})
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            asked = kserve.ModelInferRequest(model_name="shop", id="a")
            one = asked.inputs.add(name="history", datatype="INT64", shape=[3])
            one.contents.int64_contents.extend([9, 8, 7])
            asked.parameters["n"].int64_param = 4
            got = call(channel, "ModelInfer", asked)
            item, score = got.raw_output_contents
            assert got.id == "a"
            assert (
                torch.frombuffer(bytearray(item), dtype=torch.int64).tolist()
                == want["outputs"]["item"]
            )
            found = torch.frombuffer(bytearray(score), dtype=torch.float32).tolist()
            assert found == pytest.approx(want["outputs"]["score"])
            described = call(channel, "ModelMetadata", kserve.ModelMetadataRequest(name="shop"))
            assert [one.name for one in described.inputs] == ["history", "candidate"]
            assert call(channel, "ServerReady", kserve.ServerReadyRequest()).ready
            asked.parameters["width"].int64_param = 4
            with pytest.raises(grpc.RpcError, match=r"width") as refused:
                call(channel, "ModelInfer", asked)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            asked.model_name = "other"
            with pytest.raises(grpc.RpcError, match="unknown model"):
                call(channel, "ModelInfer", asked)
            with pytest.raises(grpc.RpcError) as refused:
                call(channel, "ModelStatistics", kserve.ModelStatisticsRequest(name="shop"))
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        running.call(server.stop(1))


@pytest.mark.slow
def test_the_command_answers_a_load_as_it_answers_one(exported: Path) -> None:
    """Four kinds of requests from 16 threads; SIGTERM lets the last ones end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "joymigrate", "serve", str(exported), "--port", "0",
         "--log-format", "json", "--beams", "512"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        url = next(
            found["url"] for line in process.stderr
            if line.startswith("{") and (found := json.loads(line)).get("url")
        )  # fmt: skip
        threading.Thread(target=process.stderr.read, daemon=True).start()

        def ask(number: int) -> Any:
            history = [number % 50, (number * 7) % 50, 3][: 1 + number % 3]
            kind = number % 3
            if kind == 0:
                body = {"model": "shop", "prompt": history, "n": 4, "stream": True}
                events = read_events(url, body)
                return [one["item"] for event in events for one in event["choices"]]
            path = "/v1/completions" if kind == 1 else "/v1/rank"
            body = {"model": "shop", "prompt": history, "n": 4}
            if kind == 2:
                body = {"inputs": {"history": history}, "n": 4}
            asked = urllib.request.Request(url + path, json.dumps(body).encode())
            with urllib.request.urlopen(asked, timeout=60) as reply:
                found = json.loads(reply.read())
            if kind == 2:
                return found["outputs"]["item"]
            return [one["item"] for one in found["choices"]]

        alone = [ask(number) for number in range(60)]
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(ask, list(range(60)) * 5))
        assert together == alone * 5
    finally:
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/completions", {"model": "shop", "prompt": [1, 600]}, 400, "does not know item 600"),
        ("/v1/completions", {"model": "shop", "prompt": []}, 400, "list of item ids"),
        ("/v1/completions", {"model": "shop", "prompt": "a b"}, 400, "between spaces"),
        ("/v1/completions", {"model": "other", "prompt": [1]}, 404, "unknown model"),
        ("/v1/completions", {"model": "shop", "prompt": [1], "n": 0}, 400, "n"),
        ("/v1/completions", {"model": "shop", "prompt": [1], "n": 300}, 400, "n"),
        ("/v1/completions", {"model": "shop", "prompt": [1], "n": 9, "beam_width": 2}, 400, "9"),
        ("/v1/completions", {"model": "shop", "prompt": [600], "stream": True}, 400, "item 600"),
        ("/v1/completions", {"model": "shop", "prompt": [1], "stream_options": {}}, 400, "stream"),
        ("/v1/completions", {"model": "shop", "prompt": [1], "max_tokens": 1}, 400, "max_tokens"),
        ("/v1/completions", {"model": "shop", "prompt": [1], "widht": 3}, 400, "widht"),
        ("/v1/completions", [1], 400, "JSON object"),
        ("/v1/rank", {"inputs": {"history": [1], "candidate": [55]}}, 400, "no semantic id"),
        ("/v1/rank", {"inputs": {"history": []}}, 400, "missing or empty"),
        ("/v1/rank", {"inputs": {"histroy": [1]}}, 400, "no input 'histroy'"),
        ("/v2/models/shop/infer", {"inputs": []}, 400, "at least one tensor"),
        ("/v1/nothing", {}, 404, "there is no"),
    ],
)
def test_mistakes_get_one_clear_answer(
    running: Running, path: str, body: Any, status: int, says: str
) -> None:
    found, answer = running.post(path, body)
    assert found == status
    assert says in json.dumps(answer)


def test_a_folder_without_features_is_one_clear_error(exported: Path, tmp_path: Path) -> None:
    document = json.loads((exported / "config.json").read_text())
    del document["features"]
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(JoyError) as caught:
        recommender.load(tmp_path)
    assert str(caught.value.where).startswith(str(tmp_path / "config.json"))


def test_a_round_that_fails_ends_its_requests_and_the_server_goes_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "shop", "prompt": [1, 2]}
    for part in ("begin", "round"):

        def broken(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("out of memory")

        owner: Any = running.service.loop.search.writer if part == "begin" else None
        if owner is None:
            monkeypatch.setattr(BeamSearch, "extend", broken)
        else:
            monkeypatch.setattr(owner, "begin", broken, raising=False)
        status, answer = running.post("/v1/completions", body)
        assert status in (400, 500)
        assert "out of memory" in json.dumps(answer)
        monkeypatch.undo()
        assert running.post("/v1/completions", body)[0] == 200
