"""Generated text: forced and free, from files, a small model, and a server."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.verify.generate import (
    PromptOutcome,
    TokenScores,
    divergence_of,
    measure,
    read_lines,
    verdict,
)
from joymigrate.verify.generate_live import LocalModel, RemoteModel, as_json, ask, read_prompts
from joymigrate.verify.model import Outcome
from joymigrate.verify.tolerance import Tolerance

LIMITS = Tolerance.of(None)


def line(name: str, *tokens: int, logprob: float = -0.5, gap: float = 3.0) -> PromptOutcome:
    """Every token at `logprob`; token 99 is the second choice, `gap` below."""
    words = tuple(map(str, tokens))
    top = [{word: logprob, "99": logprob - gap} for word in words]
    return PromptOutcome(name, words, TokenScores([logprob] * len(words), [True] * len(words), top))


def side(*lines: PromptOutcome) -> dict[str, PromptOutcome]:
    return {one.id: one for one in lines}


def outcome(
    base: dict[str, PromptOutcome], target: dict[str, PromptOutcome], *more: Any
) -> Outcome:
    return verdict(base, target, LIMITS, *more)[0].verdict


def test_equal_outputs_pass() -> None:
    both = side(*[line(str(i), 1, 2, 3) for i in range(5)])
    found, document = verdict(both, both, LIMITS)
    assert found.verdict is Outcome.PASS
    assert document["generation"]["forced"]["top1"] == 1
    assert document["generation"]["free"]["equal"] == 5


def test_parting_at_the_first_token_fails() -> None:
    base = side(*[line(str(i), *range(1, 33)) for i in range(50)])
    target = {**base, "0": line("0", 99, *range(2, 33))}
    found, _ = verdict(base, target, LIMITS)
    assert found.verdict is Outcome.FAIL
    assert "first token (0)" in str(found.reason)


def test_a_tie_at_the_first_token_is_no_fault() -> None:
    base = side(*[line(str(i), *range(1, 33), gap=0.01) for i in range(50)])
    target = {**base, "0": line("0", 99, *range(2, 33))}
    assert outcome(base, target) is Outcome.PASS


def test_late_drift_is_no_fault() -> None:
    base = side(*[line(str(i), *range(1, 65)) for i in range(20)])
    target = side(*[line(str(i), *range(1, 60), 0, 0, 0, 0, 0) for i in range(20)])
    found, document = verdict(base, target, LIMITS)
    assert found.verdict is Outcome.PASS
    assert document["generation"]["free"]["prefix_min"] == 59


def test_only_positions_with_the_same_context_are_compared() -> None:
    figures = measure(side(line("a", 1, 2, 3, 4)), side(line("a", 1, 9, 3, 4)), 0.05)
    assert (figures.positions, figures.agreeing) == (2, 1)


def test_log_probabilities_apart_fail() -> None:
    base = side(*[line(str(i), 1, 2, 3) for i in range(5)])
    target = side(*[line(str(i), 1, 2, 3, logprob=-1.5) for i in range(5)])
    assert outcome(base, target) is Outcome.FAIL


def test_the_baselines_own_noise_widens_the_limit() -> None:
    base = side(*[line(str(i), 1, 2, 3) for i in range(5)])
    target = side(*[line(str(i), 1, 2, 3, logprob=-0.8) for i in range(5)])
    assert outcome(base, target) is Outcome.FAIL
    again = side(*[line(str(i), 1, 2, 3, logprob=-0.75) for i in range(5)])
    assert outcome(base, target, again) is Outcome.PASS


def test_missing_prompts_never_count_as_passed() -> None:
    base = side(*[line(str(i), 1, 2, 3) for i in range(5)])
    assert outcome(base, side(base["0"])) is Outcome.INCONCLUSIVE


def test_the_divergence_is_zero_only_for_equal_distributions() -> None:
    p = {"a": math.log(0.7), "b": math.log(0.2)}
    assert divergence_of(p, p) == pytest.approx(0, abs=1e-12)
    q = {"a": math.log(0.5), "b": math.log(0.4)}
    rest = 0.1 * math.log(0.1 / 0.1)
    wanted = 0.7 * math.log(0.7 / 0.5) + 0.2 * math.log(0.2 / 0.4) + rest
    assert divergence_of(p, q) == pytest.approx(wanted)
    assert divergence_of(p, {"c": -1.0}) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no generated text"),
        ("{", "not a line"),
        ('{"id": 1}', "not a line"),
        ('{"id": 1, "tokens": [1, 2], "logprobs": [0.1]}', "1 entries for 2 tokens"),
        ('{"id": 1, "tokens": [1]}\n{"id": 1, "tokens": [1]}', "occurs twice"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(JoyError, match=what):
        read_lines(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and one whose keys are half as large again in one layer."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder / "right")
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
    model.save_pretrained(folder / "wrong")
    rows = [{"id": i, "prompt_tokens": [(7 * i + 3 * j) % 128 for j in range(6)]} for i in range(6)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def recorded(models: Path) -> dict[str, PromptOutcome]:
    source = LocalModel(models / "right", Device("cpu"), length=12)
    said = ask(source, read_prompts(models / "prompts.jsonl"), forced=False, free=True)
    path = models / "base.jsonl"
    path.write_text("".join(json.dumps(as_json(one)) + "\n" for one in said.values()))
    return read_lines(path)


def test_a_model_agrees_with_itself_and_a_wrong_one_does_not(models: Path) -> None:
    base = recorded(models)
    for name, wanted in (("right", Outcome.PASS), ("wrong", Outcome.FAIL)):
        source = LocalModel(models / name, Device("cpu"), length=12)
        said = ask(source, list(base.values()), forced=True, free=True)
        found, document = verdict(base, said, LIMITS)
        assert found.verdict is wanted
        assert document["generation"]["forced"]["tokens"] == 72


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="cannot load the model"):
        LocalModel(tmp_path, Device("cpu"))
    with pytest.raises(JoyError, match="no such model folder"):
        LocalModel(tmp_path / "absent", Device("cpu"))


class Completions(BaseHTTPRequestHandler):
    """Answers every prompt with `ab`, one letter a token; echoes when asked to."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["prompt"] if body.get("echo") else ""
        tokens = [*text, *("ab" if not body.get("echo") else "c")]
        found = {
            "tokens": tokens,
            "token_logprobs": [-0.25] * len(tokens),
            "top_logprobs": [{token: -0.25, "z": -2.0} for token in tokens],
            "text_offset": list(range(len(tokens))),
        }
        answer = json.dumps({"choices": [{"text": "ab", "logprobs": found}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    made = HTTPServer(("127.0.0.1", 0), Completions)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()


def test_a_server_is_asked_free_and_forced(server: str) -> None:
    source = RemoteModel(server, length=2)
    prompts = [PromptOutcome("1", (), prompt="hello")]
    base = ask(source, prompts, forced=False, free=True)
    assert base["1"].tokens == ("a", "b")
    said = ask(source, list(base.values()), forced=True, free=True)
    assert said["1"].forced is not None
    assert list(said["1"].forced.first_choice)[:2] == [True, True]
    assert outcome(base, said) is Outcome.PASS


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(JoyError, match="no answer"):
        RemoteModel("http://127.0.0.1:9").free(PromptOutcome("1", (), prompt="x"))
