"""The preflight: what it finds, what it plans, what it advises."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from joymigrate import chips
from joymigrate.cli._main import run
from joymigrate.run.serve.engine import check
from joymigrate.run.serve.engine import memory as planned
from joymigrate.run.serve.engine.preflight import Preflight, StartFinding, StartRequest
from joymigrate.run.serve.engine.types import EngineOptions

CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}


def make(folder: Path, numbers: int = 7_615_616_512, **more: Any) -> Path:
    """A folder whose weights are a header and a hole: as large as the real thing, no bytes."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **more}))
    size = numbers * 2
    table = {"w": {"dtype": "BF16", "shape": [numbers], "data_offsets": [0, size]}}
    raw = json.dumps(table).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + size)
    return folder


def look(folder: Path, sku: str | None = "910B3", **options: Any) -> Preflight:
    wanted = StartRequest(folder, EngineOptions(**options), chips.target("ascend"), sku, port=0)
    return check.check(wanted)


def finding(found: Preflight, name: str) -> StartFinding:
    return next(one for one in found.findings if one.name == name)


def test_a_file_that_only_the_index_names_is_missed(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    listed = {"weight_map": {"w": "model.safetensors", "x": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    found = look(folder)
    assert not found
    assert "model-00002-of-00002.safetensors" in finding(found, "model").found
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w": "model.safetensors"}}'
    )
    assert look(folder)


def test_the_plan_of_a_7b_model_is_arithmetic(tmp_path: Path) -> None:
    found = look(make(tmp_path / "m"))
    assert finding(found, "memory").grade == "documented"  # the card's size is the vendor's word
    assert finding(found, "address").grade is None
    memory = found.memory
    assert memory is not None
    assert memory.weights == 7_615_616_512 * 2
    assert memory.kv_per_token == 2 * 28 * 4 * 128 * 2
    assert memory.total == 64 * 2**30
    left = int(memory.total * planned.USABLE) - memory.weights - planned.RUNTIME_BYTES
    assert memory.blocks == left // (128 * memory.kv_per_token)
    assert memory.tokens == memory.blocks * 128


def test_float32_takes_twice_as_much(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    one, two = look(folder).memory, look(folder, dtype="float32").memory
    assert one is not None
    assert two is not None
    assert (two.weights, two.kv_per_token) == (2 * one.weights, 2 * one.kv_per_token)


def test_a_model_that_does_not_fit_is_told_what_helps(tmp_path: Path) -> None:
    found = look(make(tmp_path / "m", 72_000_000_000))
    told = finding(found, "memory")
    assert not found
    assert told.status == "fail"
    assert "--tensor-parallel" in told.remedy


def test_more_cards_make_it_fit(tmp_path: Path) -> None:
    found = look(make(tmp_path / "m", 72_000_000_000), tensor_parallel=4)
    assert finding(found, "memory").status == "ok"


def test_a_short_cache_advises_a_shorter_text(tmp_path: Path) -> None:
    found = look(make(tmp_path / "m"), kv_blocks=10)
    assert "--max-model-len 1280" in finding(found, "memory").remedy


def test_an_unknown_card_is_named(tmp_path: Path) -> None:
    found = look(make(tmp_path / "m"), sku="910Z")
    assert "has no model '910Z'" in finding(found, "model").found
    assert "910B3" in finding(found, "model").remedy


def test_a_card_without_known_memory_is_a_warning(tmp_path: Path) -> None:
    told = finding(look(make(tmp_path / "m"), sku="910B4"), "memory")
    assert told.status == "warn"
    assert "--kv-memory" in told.remedy


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not JSON"),
        (lambda f: make(f, architectures=3), "architectures is 3, but must be a list"),
        (lambda f: make(f, text_config="x"), "text_config is 'x', but must be an object"),
        (lambda f: make(f, text_config={"n_layer": "x"}), "n_layer is 'x', but must be a whole"),
        (lambda f: make(f, head_dim=-1), "head_dim is -1, but must be a whole number"),
        (lambda f: make(f, num_hidden_layers=10**12), "must be a whole number"),
        (lambda f: (f / "model.safetensors").unlink(), "no safetensors weights"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 4), "no safetensors file"),
        (lambda f: (f / "model.safetensors").open("r+b").truncate(1000), "cut off"),
    ],
)
def test_a_broken_folder_is_a_finding(tmp_path: Path, break_it: Any, says: str) -> None:
    folder = make(tmp_path / "m")
    break_it(folder)
    found = look(folder)
    assert not found
    assert says in finding(found, "model").found


def test_layers_with_sizes_of_their_own_are_planned_by_the_largest(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", model_type="openelm", num_key_value_heads=None,
                  num_kv_heads=[3, 4])  # fmt: skip
    memory = look(folder).memory
    assert memory is not None
    assert memory.kv_per_token == 2 * 28 * 4 * 128 * 2


def test_a_package_for_another_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0+cpu", "torch-npu": "2.10.0.post4"}
    monkeypatch.setattr(check, "installed_version", lambda name: versions.get(name, "1"))
    told = check.package(chips.target("ascend"), versions["torch"])
    assert told.status == "fail"
    assert "needs torch 2.10.0, not 2.13.0" in told.found
    assert "torch-npu==2.13.0" in told.remedy
    versions["torch-npu"] = "2.13.0"
    assert check.package(chips.target("ascend"), versions["torch"]).status == "ok"


def test_operators_are_looked_up_in_the_chips_list(tmp_path: Path) -> None:
    found = look(make(tmp_path / "m"))
    names = [one.name for one in found.findings if one.name.startswith("operator")]
    assert names, "the list was consulted"


# Views, copies and questions about a tensor: no kernel of a chip is behind them.
NO_KERNEL = {
    "chunk", "clone", "copy_", "detach_", "flatten", "is_nonzero", "lift_fresh", "new_empty",
    "new_zeros", "permute", "reshape", "resolve_conj", "resolve_neg", "select", "slice", "to",
    "transpose", "unsqueeze", "view", "zeros", "empty", "squeeze", "expand", "_to_copy", "split",
    "contiguous", "alias", "detach", "unbind", "item", "_local_scalar_dense", "t",
}  # fmt: skip


def test_the_list_of_operators_is_what_a_run_calls(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'joymigrate[serve]'")
    from torch.utils._python_dispatch import TorchDispatchMode

    from joymigrate.run.serve.engine.load import load_engine
    from joymigrate.run.serve.engine.types import Request, Sampling

    from .models import save

    seen: set[str] = set()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.add(func._schema.name)
            return func(*args, **(kwargs or {}))

    save(tmp_path / "m")
    engine = load_engine(tmp_path / "m", EngineOptions(prepack=False, threads=1)).engine
    full = Sampling(
        max_tokens=4, top_p=0.9, top_k=5, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.1,
        frequency_penalty=0.1, logit_bias={3: 1.0}, logprobs=2, prompt_logprobs=1, seed=1,
    )  # fmt: skip
    with Recorder():
        engine.add(Request("greedy", (5, 6, 7), Sampling(max_tokens=4, temperature=0)))
        engine.add(Request("sampled", (5, 6, 7), full))
        while not engine.idle:
            engine.step()
    called = {name.removeprefix("aten::") for name in seen if name.startswith("aten::")} - NO_KERNEL
    listed = {name.removeprefix("aten::").partition(".")[0] for name in check.OPERATORS}
    assert called - listed == set()


def test_a_taken_address_is_found() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert check.port("127.0.0.1", taken.getsockname()[1]).status == "fail"
    assert "set --api-key" in check.port("0.0.0.0", 0).found


def test_the_command_answers_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path / "m", 1000)
    arguments = ["serve", str(folder), "--check", "--device", "cpu", "--port", "0"]
    assert run([*arguments, "--max-model-len", "64", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "joymigrate.preflight/1"
    assert found["ready"]
    assert found["memory"]["kv_bytes_per_token"] == 2 * 28 * 4 * 128 * 2
    (folder / "config.json").unlink()
    assert run(arguments) == 1
    assert "!! model" in capsys.readouterr().out
