"""Starting somebody else's engine. A small program stands for vLLM's command line here: it takes
the same words and answers the same paths; vLLM itself is not installed where these tests run."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'joymigrate[serve]'")

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine import launch

from .http.conftest import call, free_port, process, wait_ready

STAND_IN = """\
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words = sys.argv[1:]
assert words[0] == "serve", words
options = dict(zip(words[2::2], words[3::2]))
if options.get("--dtype") == "broken":
    print("RuntimeError: Engine core initialization failed", file=sys.stderr)
    sys.exit(1)
print("vLLM stand-in for", words[1], flush=True)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send(self, body, kind="application/json", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            return self.send(b"")
        self.send(json.dumps({"data": [{"id": options["--served-model-name"]}], "words": words,
                              "pid": os.getpid()}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("prompt") == "die":
            os._exit(3)
        if body["model"] != options["--served-model-name"]:
            return self.send(b'{"error": {"message": "no such model", "code": 404}}', status=404)
        text = body["prompt"].upper()[: body.get("max_tokens", 16)]
        choice = {"index": 0, "text": text, "finish_reason": "length"}
        if body.get("stream"):
            events = [{"choices": [{**choice, "text": c}]} for c in text]
            data = b"".join(b"data: " + json.dumps(e).encode() + b"\\n\\n" for e in events)
            return self.send(data + b"data: [DONE]\\n\\n", "text/event-stream")
        usage = {"prompt_tokens": 1, "completion_tokens": len(text)}
        self.send(json.dumps({"choices": [choice], "usage": usage}).encode())


ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A folder that looks like a virtual environment with vllm and vllm_ascend in it."""
    made = tmp_path / "env"
    for module in ("vllm", "vllm_ascend"):
        (made / "lib" / module).mkdir(parents=True)
        (made / "lib" / module / "__init__.py").touch()
    (made / "bin").mkdir()
    (made / "stand_in.py").write_text(STAND_IN)
    python = f'#!/bin/sh\nPYTHONPATH="{made}/lib" exec "{sys.executable}" "$@"\n'
    vllm = f'#!/bin/sh\nexec "{sys.executable}" "{made}/stand_in.py" "$@"\n'
    for name, text in (("python", python), ("vllm", vllm)):
        (made / "bin" / name).write_text(text)
        (made / "bin" / name).chmod(0o755 | stat.S_IXUSR)
    return made


def wish(**more: object) -> launch.LaunchRequest:
    return launch.LaunchRequest(**{"model": "/models/tiny", "name": "tiny", **more})  # type: ignore[arg-type]


def test_engines_come_from_the_chips_folders() -> None:
    known = launch.launchers()
    assert known["vllm"].chip == "nvidia"
    assert known["vllm-ascend"].chip == "ascend"
    assert known["vllm-ascend"].fits[0]["torch"] == "2.10.0"


@pytest.mark.parametrize(
    ("chip", "more"),
    [("nvidia", []), ("ascend", ["--device", "npu", "--attention-backend", "ascend"])],
)
def test_sglang_starts_by_the_same_name_on_every_chip(chip: str, more: list[str]) -> None:
    line = launch.command(
        launch.find_launcher("sglang", chip),
        wish(container="env", max_model_len=512, tensor_parallel=2),
        7,
    )
    assert line == [
        "env", "python3", "-m", "sglang.launch_server", "--model-path", "/models/tiny",
        "--host", "127.0.0.1", "--port", "7", "--served-model-name", "tiny", "--enable-metrics",
        *more, "--context-length", "512", "--tp-size", "2",
    ]  # fmt: skip


def test_vllm_on_the_target_is_its_plug_in() -> None:
    assert launch.find_launcher("vllm", "ascend").module == "vllm_ascend"
    assert (
        launch.find_launcher("vllm").module
        == launch.find_launcher("vllm", "nvidia").module
        == "vllm"
    )


def test_a_program_that_is_no_python_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = launch.find_launcher("xllm", "ascend")
    with pytest.raises(JoyError, match="no program 'xllm'"):
        launch.command(engine, wish(), 7)
    (tmp_path / "xllm").write_text("#!/bin/sh\n")
    (tmp_path / "xllm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = launch.command(engine, wish(), 7)
    assert line[:5] == [str(tmp_path / "xllm"), "--model", "/models/tiny", "--model_id", "tiny"]
    assert "--devices=npu:0" in line
    with pytest.raises(JoyError, match="takes no tensor_parallel=2"):
        launch.command(engine, wish(tensor_parallel=2), 7)


MODEL = {"modelName": "", "modelWeightPath": "", "worldSize": 4}
SERVER = {"ipAddress": "", "managementIpAddress": "", "port": 1, "httpsEnabled": True,
          "openAiSupport": "", "kept": 5}  # fmt: skip
DEPLOYED = {"maxSeqLen": 2560, "ModelConfig": [MODEL]}
INSTALLED = {
    "ServerConfig": SERVER,
    "BackendConfig": {"npuDeviceIds": [[0]], "ModelDeployConfig": DEPLOYED},
}
DAEMON = """import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer

server = json.load(open(os.environ["MIES_CONFIG_JSON_PATH"]))["ServerConfig"]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()


HTTPServer((server["ipAddress"], server["port"]), Handler).serve_forever()
"""


def test_an_engine_that_reads_a_file_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    for folder in ("bin", "conf"):
        (tmp_path / folder).mkdir()
    (tmp_path / "conf" / "config.json").write_text(json.dumps(INSTALLED))
    program = tmp_path / "bin" / "mindieservice_daemon"
    program.write_text(f"#!{sys.executable}\n{DAEMON}")
    program.chmod(0o755)
    monkeypatch.setenv("MIES_INSTALL_PATH", str(tmp_path))
    engine = launch.find_launcher("mindie", "ascend")
    asked = wish(tensor_parallel=2, max_model_len=512)
    assert launch.command(engine, asked, 7) == [str(program)]
    named = launch.write_configuration(engine, asked, 7, tmp_path)
    made = json.loads(Path(named["MIES_CONFIG_JSON_PATH"]).read_text())
    assert made["ServerConfig"]["port"] == 7
    assert made["ServerConfig"]["kept"] == 5
    assert made["BackendConfig"]["npuDeviceIds"] == [[0, 1]]
    deployed = made["BackendConfig"]["ModelDeployConfig"]
    assert (deployed["maxSeqLen"], deployed["ModelConfig"][0]["worldSize"]) == (512, 2)

    async def whole() -> None:
        child = launch.Child(engine, wish(start_seconds=30.0), print)
        await child.start()  # returns once /v1/models answers at the port that the file names
        await child.stop()

    asyncio.run(whole())
    (tmp_path / "conf" / "config.json").write_text("{}")
    with pytest.raises(JoyError, match=r"no ServerConfig\.ipAddress"):
        launch.write_configuration(engine, asked, 7, tmp_path)


def test_a_misspelt_engine_gets_a_hint() -> None:
    with pytest.raises(JoyError, match="Did you mean 'vllm'"):
        launch.find_launcher("vlm")


def test_the_command_line_is_vllms(environment: Path) -> None:
    line = launch.command(
        launch.find_launcher("vllm"),
        wish(python=environment, dtype="bfloat16", max_model_len=4096, tensor_parallel=2,
             extra=("--seed", "1")),
        8123,
    )  # fmt: skip
    assert line[0] == str(environment / "bin" / "vllm")
    assert line[1:] == [
        "serve", "/models/tiny", "--host", "127.0.0.1", "--port", "8123",
        "--served-model-name", "tiny", "--dtype", "bfloat16", "--max-model-len", "4096",
        "--tensor-parallel-size", "2", "--seed", "1",
    ]  # fmt: skip


def test_a_container_command_comes_first() -> None:
    line = launch.command(launch.find_launcher("vllm-ascend"), wish(container="env A=1 sh -c"), 1)
    assert line[:5] == ["env", "A=1", "sh", "-c", "vllm"]


def test_a_missing_engine_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="vllm-ascend is not installed") as caught:
        launch.command(launch.find_launcher("vllm-ascend"), wish(), 1)
    assert "pip install vllm-ascend" in str(caught.value.help)
    with pytest.raises(JoyError, match="environment's folder"):
        launch.command(launch.find_launcher("vllm"), wish(python=tmp_path / "none"), 1)
    with pytest.raises(JoyError, match="there is no program 'dockr'"):
        launch.command(launch.find_launcher("vllm"), wish(container="dockr run x"), 1)


def test_what_serve_decides_is_not_handed_on() -> None:
    with pytest.raises(JoyError, match="--port belongs to serve"):
        launch.command(launch.find_launcher("vllm"), wish(extra=("--port", "1")), 1)


def arguments(environment: Path, port: int, *more: str) -> tuple[str, ...]:
    return (
        "some/model", "--engine", "vllm", "--python", str(environment), "--port", str(port),
        "--name", "tiny", "--api-key", "k", *more,
    )  # fmt: skip


def test_the_front_door_is_ours_and_signals_reach_the_engine(environment: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    key = {"Authorization": "Bearer k"}
    with process(*arguments(environment, port, "--", "--seed", "7")) as (made, lines):
        wait_ready(url, made, lines)
        assert call(url + "/v1/models")[0] == 401
        models = json.loads(call(url + "/v1/models", None, key)[2])
        assert models["data"] == [{"id": "tiny"}]
        assert models["words"][-2:] == ["--seed", "7"]
        body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 3}).encode()
        assert (
            json.loads(call(url + "/v1/completions", body, key)[2])["choices"][0]["text"] == "HEL"
        )
        wrong = json.dumps({"model": "x", "prompt": "hello"}).encode()
        assert call(url + "/v1/completions", wrong, key)[0] == 404
        asked = json.dumps({"text_input": "hello", "max_tokens": 4}).encode()
        found = json.loads(call(url + "/v2/models/tiny/generate", asked, key)[2])
        assert found["text_output"] == "HELL"
        streamed = call(url + "/v2/models/tiny/generate_stream", asked, key)[2]
        pieces = [json.loads(e[6:])["text_output"] for e in streamed.split(b"\n\n") if e]
        assert "".join(pieces) == "HELL"
        tensor = {"name": "text_input", "shape": [2], "datatype": "BYTES", "data": ["ab", "cd"]}
        infer = json.dumps({"inputs": [tensor], "parameters": {"max_tokens": 2}}).encode()
        (output,) = json.loads(call(url + "/v2/models/tiny/infer", infer, key)[2])["outputs"]
        assert (output["data"], output["shape"]) == (["AB", "CD"], [2])
        made.send_signal(signal.SIGTERM)
        assert made.wait(60) == 0
        assert gone(models["pid"])
    assert any("vllm: vLLM stand-in for some/model" in line for line in lines)


def gone(pid: int) -> bool:
    """Whether a process has ended, or does so soon."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_an_engine_that_cannot_start_shows_its_last_words(environment: Path) -> None:
    port = free_port()
    with process(*arguments(environment, port, "--dtype", "broken")) as (made, lines):
        assert made.wait(60) == 2
    text = "".join(lines)
    assert "vllm ended with exit code 1" in text
    assert "Engine core initialization failed" in text


def test_an_engine_that_dies_ends_the_server(environment: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    key = {"Authorization": "Bearer k"}
    with process(*arguments(environment, port)) as (made, lines):
        wait_ready(url, made, lines)
        body = json.dumps({"model": "tiny", "prompt": "die"}).encode()
        assert call(url + "/v1/completions", body, key)[0] == 502
        assert made.wait(60) == 2
    assert "vllm ended with exit code 3" in "".join(lines)
