"""KServe v2 with the official Triton client: JSON and binary tensors, batches, streams, errors."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import numpy
import pytest

http = pytest.importorskip("tritonclient.http", reason="pip install 'joymigrate[dev]'")
from tritonclient.utils import InferenceServerException  # noqa: E402

GREEDY = {"max_tokens": 8, "temperature": 0.0}


def text(values: list[str], shape: list[int] | None = None, *, binary: bool = True) -> Any:
    made = http.InferInput("text_input", shape or [len(values)], "BYTES")
    array = numpy.array([value.encode() for value in values], dtype=object)
    made.set_data_from_numpy(array.reshape(shape or [len(values)]), binary_data=binary)
    return made


def number(name: str, datatype: str, values: list[Any], kind: Any) -> Any:
    made = http.InferInput(name, [len(values)], datatype)
    made.set_data_from_numpy(numpy.array(values, dtype=kind))
    return made


def settings(tokens: int = 8) -> list[Any]:
    return [
        number("max_tokens", "INT32", [tokens], numpy.int32),
        number("temperature", "FP32", [0.0], numpy.float32),
    ]


def said(server: Any, prompt: str, tokens: int = 8) -> str:
    """What the OpenAI API says to the same."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
    return str(json.loads(server.post("/v1/completions", body)[2])["choices"][0]["text"])


def output(result: Any) -> list[str]:
    values = result.as_numpy("text_output").reshape(-1)
    return [value if isinstance(value, str) else value.decode() for value in values]


def test_the_server_lives_and_is_ready(triton: Any) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()


def test_the_server_describes_itself(triton: Any) -> None:
    found = triton.get_server_metadata()
    assert found["name"] == "joymigrate"
    assert {"binary_tensor_data", "generate", "statistics"} <= set(found["extensions"])


def test_the_model_is_ready_in_its_version(triton: Any) -> None:
    assert triton.is_model_ready("tiny")
    assert triton.is_model_ready("tiny", "1")
    assert not triton.is_model_ready("tiny", "2")
    assert not triton.is_model_ready("gpt-9")


def test_the_model_takes_a_text_first(triton: Any) -> None:
    found = triton.get_model_metadata("tiny")
    assert found["inputs"][0] == {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    assert found["outputs"][0]["name"] == "text_output"
    assert found["versions"] == ["1"]


def test_only_the_text_must_be_there(triton: Any) -> None:
    found = triton.get_model_config("tiny", "1")
    assert [one["optional"] for one in found["input"]][:3] == [False, True, True]
    assert found["parameters"]["max_model_len"]["string_value"] == "512"


def test_the_repository_lists_the_model(triton: Any) -> None:
    (row,) = triton.get_model_repository_index()
    assert (row["name"], row["state"]) == ("tiny", "READY")


def test_a_model_cannot_be_unloaded(triton: Any) -> None:
    with pytest.raises(InferenceServerException, match="lives as long as this server"):
        triton.unload_model("tiny")


def test_statistics_count_texts(triton: Any) -> None:
    before = triton.get_inference_statistics("tiny")["model_stats"][0]["inference_count"]
    triton.infer("tiny", [text(["Hello"]), *settings()])
    after = triton.get_inference_statistics("tiny")["model_stats"][0]
    assert after["inference_count"] == before + 1
    assert after["inference_stats"]["success"]["ns"] > 0


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer_says_what_openai_says(
    triton: Any, server: Any, binary_in: bool, binary_out: bool
) -> None:
    wanted = [http.InferRequestedOutput("text_output", binary_data=binary_out)]
    inputs = [text(["Hello world"], binary=binary_in), *settings()]
    found = triton.infer("tiny", inputs, outputs=wanted)
    assert output(found) == [said(server, "Hello world")]


def test_a_request_keeps_its_id(triton: Any) -> None:
    found = triton.infer("tiny", [text(["Hello"]), *settings()], request_id="seven")
    assert found.get_response()["id"] == "seven"
    assert found.get_response()["model_version"] == "1"


@pytest.mark.parametrize("shape", [[3], [3, 1], [1, 3]])
def test_a_batch_answers_in_its_shape(triton: Any, server: Any, shape: list[int]) -> None:
    prompts = ["Hello", "world", "你好"]
    found = triton.infer("tiny", [text(prompts, shape), *settings()])
    assert list(found.as_numpy("text_output").shape) == shape
    assert output(found) == [said(server, prompt) for prompt in prompts]


def test_settings_may_differ_within_a_batch(triton: Any, server: Any) -> None:
    lengths = number("max_tokens", "INT32", [3, 7], numpy.int32)
    found = triton.infer("tiny", [text(["Hello", "world"]), lengths, settings()[1]])
    assert output(found) == [said(server, "Hello", 3), said(server, "world", 7)]


@pytest.mark.parametrize("way", ["gzip", "deflate"])
def test_bodies_may_be_packed_both_ways(triton: Any, server: Any, way: str) -> None:
    prompts = ["Hello world"] * 40
    found = triton.infer(
        "tiny",
        [text(prompts), *settings()],
        request_compression_algorithm=way,
        response_compression_algorithm=way,
    )
    assert output(found) == [said(server, "Hello world")] * 40


def test_a_packed_answer_says_so(server: Any) -> None:
    body = {
        "inputs": [{"name": "text_input", "shape": [40], "datatype": "BYTES", "data": ["Hi"] * 40}]
    }
    packed = gzip.compress(json.dumps(body).encode())
    status, headers, raw = server.post(
        "/v2/models/tiny/infer",
        packed,
        **{"Content-Encoding": "gzip", "Accept-Encoding": "deflate"},
    )
    assert status == 200
    assert headers["Content-Encoding"] == "deflate"
    assert len(json.loads(zlib.decompress(raw))["outputs"][0]["data"]) == 40


def test_other_outputs_come_when_named(triton: Any) -> None:
    names = ["text_output", "finish_reason", "num_input_tokens", "num_output_tokens"]
    wanted = [http.InferRequestedOutput(name) for name in names]
    found = triton.infer("tiny", [text(["Hello"]), *settings(5)], outputs=wanted)
    assert found.as_numpy("num_output_tokens").tolist() == [5]
    assert found.as_numpy("finish_reason").tolist() == [b"length"]


def test_a_prompt_may_be_repeated(triton: Any, server: Any) -> None:
    flag = number("exclude_input_in_output", "BOOL", [False], bool)
    found = triton.infer("tiny", [text(["Hello"]), flag, *settings()])
    assert output(found) == ["Hello" + said(server, "Hello")]


def test_settings_may_come_as_one_json_text(triton: Any, server: Any) -> None:
    packed = http.InferInput("sampling_parameters", [1], "BYTES")
    packed.set_data_from_numpy(numpy.array([json.dumps(GREEDY).encode()], dtype=object))
    found = triton.infer("tiny", [text(["Hello"]), packed])
    assert output(found) == [said(server, "Hello")]


def test_settings_may_come_as_parameters(triton: Any, server: Any) -> None:
    found = triton.infer("tiny", [text(["Hello"])], parameters=GREEDY)
    assert output(found) == [said(server, "Hello")]


def test_stop_strings_are_a_tensor(triton: Any, server: Any) -> None:
    whole = said(server, "Hello", 20)
    stop = http.InferInput("stop", [1], "BYTES")
    stop.set_data_from_numpy(numpy.array([whole[4:6].encode()], dtype=object))
    found = triton.infer("tiny", [text(["Hello"]), stop, *settings(20)])
    assert output(found) == [whole[: whole.index(whole[4:6])]]


def test_requests_may_run_asynchronously(server: Any) -> None:
    made = http.InferenceServerClient(server.url.removeprefix("http://"), concurrency=4)
    waiting = [made.async_infer("tiny", [text([f"Hello {i}"]), *settings()]) for i in range(8)]
    found = [output(one.get_result())[0] for one in waiting]
    made.close()
    assert found == [said(server, f"Hello {i}") for i in range(8)]


def test_generate_says_what_infer_says(server: Any) -> None:
    status, _, raw = server.post("/v2/models/tiny/generate", {"text_input": "Hello", **GREEDY})
    assert status == 200
    found = json.loads(raw)
    assert found["text_output"] == said(server, "Hello")
    assert found["model_name"] == "tiny"


@pytest.mark.parametrize(
    "path", ["/v2/models/tiny/generate", "/v2/models/tiny/versions/1/generate"]
)
def test_generate_takes_parameters(server: Any, path: str) -> None:
    body = {"text_input": "Hello", "parameters": {**GREEDY, "stream": False}}
    assert json.loads(server.post(path, body)[2])["text_output"] == said(server, "Hello")


def test_a_generated_stream_says_the_same_in_pieces(server: Any) -> None:
    body = {"text_input": "Hello", "parameters": {**GREEDY, "max_tokens": 20, "stream": True}}
    status, headers, raw = server.post("/v2/models/tiny/generate_stream", body)
    assert status == 200
    assert headers["Content-Type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line]
    assert "".join(event["text_output"] for event in events) == said(server, "Hello", 20)
    assert events[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "inputs is a list"),
        ({"inputs": []}, "inputs is a list"),
        ({"inputs": [3]}, "inputs[0] is an object"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}, "text_input"),
        ({"inputs": [{"name": "text_input", "shape": [1], "datatype": "FP32", "data": [1]}]},
         "is BYTES"),
        ({"inputs": [{"name": "text_input", "shape": [2], "datatype": "BYTES", "data": ["a"]}]},
         "shape [2] has 2 elements"),
        ({"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [1]}]},
         "no element of type BYTES"),
        ({"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES"}]}, "has no data"),
        ({"inputs": [{"name": "text_input", "shape": [-1], "datatype": "BYTES", "data": ["a"]}]},
         "shape is a list of sizes"),
        ({"inputs": [{"name": "text_input", "shape": [1], "datatype": "TEXT", "data": ["a"]}]},
         "datatype is"),
        ({"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES",
                      "parameters": {"binary_data_size": 9}}]}, "binary_data_size is 9"),
        ({"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
          "outputs": [{"name": "logits"}]}, "unexpected inference output"),
        ({"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
          "parameters": {"sequence_id": 3}}, "sequences are not supported"),
        ({"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
          "parameters": {"max_tokns": 3}}, "Did you mean 'max_tokens'"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_words(server: Any, body: Any, says: str) -> None:
    status, error = server.refused("/v2/models/tiny/infer", body)
    assert status == 400
    assert says in error


def test_binary_data_that_is_cut_off_is_refused(server: Any) -> None:
    header = json.dumps(
        {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES",
                     "parameters": {"binary_data_size": 6}}]}
    ).encode()  # fmt: skip
    length = {"Inference-Header-Content-Length": str(len(header))}
    tail = (9).to_bytes(4, "little") + b"ab"
    status, error = server.refused("/v2/models/tiny/infer", header + tail, **length)
    assert status == 400
    assert "cut off" in error


@pytest.mark.parametrize("length", ["abc", "-1", "999999"])
def test_a_wrong_header_length_is_refused(server: Any, length: str) -> None:
    more = {"Inference-Header-Content-Length": length}
    assert server.refused("/v2/models/tiny/infer", b"{}", **more)[0] == 400


def test_an_unknown_model_is_the_clients_exception(triton: Any) -> None:
    with pytest.raises(InferenceServerException, match="unknown model"):
        triton.infer("gpt-9", [text(["Hello"])])


def test_a_timeout_ends_the_request(triton: Any, server: Any) -> None:
    with pytest.raises(InferenceServerException, match="timeout"):
        triton.infer("tiny", [text(["Hello"]), *settings(400)], timeout=1000)
    server.idle()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2/nowhere", 404), ("POST", "/v2/models/tiny/explain", 404),
     ("GET", "/v2/models/tiny/infer", 405), ("POST", "/v2", 405)],
)  # fmt: skip
def test_errors_are_json_everywhere(server: Any, method: str, path: str, status: int) -> None:
    found, headers, raw = server.post(path, {}) if method == "POST" else server.get(path)
    assert found == status
    assert headers["Content-Type"].startswith("application/json")
    assert isinstance(json.loads(raw)["error"], str)
