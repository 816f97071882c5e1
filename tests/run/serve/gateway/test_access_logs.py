"""Logs of other gateways and servers: the same verdicts as our own traffic gets."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.run.serve.gateway.access_logs import judge_logs, read_log


def payload(number: int, model_id: str, **more: Any) -> str:
    """A StandardLoggingPayload of LiteLLM."""
    began = 1_700_000_000.0 + number
    seconds = more.pop("seconds", 1.0 + number % 7 / 10)
    finish, text = more.pop("finish", "stop"), more.pop("text", f"The answer is {number}.")
    made = {
        "id": f"chatcmpl-{number}", "call_type": "acompletion", "stream": False,
        "status": "success", "startTime": began, "endTime": began + seconds,
        "completionStartTime": began + seconds, "model_group": "m", "model_id": model_id,
        "completion_tokens": 20 + number % 5, "end_user": f"u{number}",
        "response": {"choices": [{"finish_reason": finish, "message": {"content": text}}]},
        **more,
    }  # fmt: skip
    return json.dumps(made)


def litellm(path: Path, standby: Any = lambda number: {}, count: int = 8000) -> Path:
    """A log in which every other request is the standby's, and ends as `standby` says."""
    rows = [payload(n, "npu", **standby(n)) if n % 2 else payload(n, "gpu") for n in range(count)]
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def fails(share: float, code: str = "500", name: str = "InternalServerError") -> Any:
    rng = random.Random(1)
    said = {"status": "failure", "error_information": {"error_code": code, "error_class": name}}
    return lambda number: said if rng.random() < share else {}


@pytest.mark.parametrize(
    ("standby", "state", "why"),
    [
        (lambda n: {}, "promoted", "0 of"),
        (fails(0.02), "rolled_back", "status_500"),
        (fails(0.05, "408", "Timeout"), "rolled_back", "first_byte_timeout"),
        (fails(0.1, "400", "BadRequestError"), "promoted", "0 of"),
        (fails(0.1, "429", "RateLimitError"), "promoted", "0 of"),
        (lambda n: {"finish": "length"}, "rolled_back", "ends by length"),
        (lambda n: {"text": "ok " * 60}, "rolled_back", "loops"),
        (lambda n: {"completion_tokens": 3}, "rolled_back", "tokens"),
        (lambda n: {"seconds": 30.0}, "paused", "slow"),
    ],
)
def test_litellm_logs_get_a_verdict(tmp_path: Path, standby: Any, state: str, why: str) -> None:
    found = judge_logs(read_log(litellm(tmp_path / "log.jsonl", standby), ""), "npu", None)
    assert found["state"] == state, found["reasons"]
    assert why in " ".join(found["reasons"])
    assert "texts are not compared" in found["covers"]


def vllm(path: Path, statuses: list[int]) -> Path:
    lines = ["INFO 11-20 10:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0"]
    lines += [
        f"(APIServer pid=7) INFO:     10.0.{n // 250}.{n % 250}:4{n % 1000:03} - "
        f'"POST /v1/chat/completions HTTP/1.1" {status} OK'
        for n, status in enumerate(statuses)
    ]
    lines += ['INFO:     10.0.0.1:5555 - "GET /health HTTP/1.1" 200 OK']
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("bad", "state"), [([], "promoted"), ([500] * 20, "rolled_back"), ([404] * 20, "promoted")]
)
def test_vllm_logs_of_two_servers_get_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: list[int], state: str
) -> None:
    good = vllm(tmp_path / "gpu.log", [200] * 6000)
    other = vllm(tmp_path / "npu.log", [200] * 3000 + bad + [200] * 3000)
    logs = ["--access-log", f"gpu={good}", "--access-log", f"npu={other}", "--standby", "npu"]
    assert run(["serve", "simulate", *logs, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["verdict"]
    assert found["state"] == state, found
    assert found["unjudged"] == bad.count(404)
    assert found["covers"] == "failures; texts are not compared"
    assert run(["serve", "simulate", *logs]) == 0
    assert state in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "nothing here\n", '{"a": 1}\n', "{broken\n"])
def test_what_is_no_access_log_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(JoyError) as caught:
        read_log(path, "npu")
    assert caught.value.help


def test_a_standby_that_is_not_in_the_logs_is_named(tmp_path: Path) -> None:
    rows = read_log(litellm(tmp_path / "log.jsonl", count=20), "")
    with pytest.raises(JoyError, match="the logs are of gpu, npu"):
        judge_logs(rows, "nqu", None)
