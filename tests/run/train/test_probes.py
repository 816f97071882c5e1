"""What a model is tried for before it is trained, and the experts' balance in the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="pip install 'joymigrate[train]'")

import torch

from joymigrate.errors import JoyError
from joymigrate.run.train import probes
from joymigrate.run.train.job import load
from joymigrate.run.train.models import ModelSource
from joymigrate.run.train.run_folder import RunFolder
from joymigrate.run.train.worker import main
from tests.run.train.jobs import TINY, losses, write

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
LLAMA = {**TINY, "model_type": "llama", "vocab_size": 64}
OPT = {**SMALL, "model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32}
# It ignores positions, and keeps a state from token to token.
MAMBA = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8,
         "vocab_size": 64}  # fmt: skip
MIXTRAL = {**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
           "vocab_size": 64}  # fmt: skip


def model_from(settings: dict[str, Any]) -> Any:
    kind = "eager" if settings is MAMBA else "sdpa"
    return ModelSource(None, settings, attention=kind).transformers("AutoModelForCausalLM")


def job_of(folder: Path, model: dict[str, Any], name: str = "job", **more: Any) -> Path:
    """A job that learns next to nothing, so that losses compare."""
    known = {key: value for key, value in model.items() if key != "vocab_size"}
    small: dict[str, Any] = {"steps": 2, "batch": {"size": 4}, "kernels": "off"}
    small["optimiser"] = {"name": "sgd", "lr": 1e-6}
    return write(folder, name, model={"from_config": known}, **small, **more)


def train(path: Path, said: list[str]) -> RunFolder:
    """The run, to its end."""
    run = RunFolder(path.with_suffix(""))
    run.begin(load(path), fresh=True)
    assert main(run.path, said.append) == 0
    return run


@pytest.mark.parametrize(("settings", "leaks"), [(LLAMA, False), (OPT, True), (MAMBA, True)])
def test_a_row_of_two_documents_is_tried(settings: dict[str, Any], leaks: bool) -> None:
    found = probes.find_leak(model_from(settings), 64)
    assert (found is not None) == leaks
    if leaks:
        assert "a document sees the one before it" in str(found)


def test_a_trial_leaves_the_model_and_the_numbers_as_they_were() -> None:
    model = model_from(LLAMA)
    before = torch.get_rng_state()
    probes.find_leak(model, 64)
    assert model.training
    assert torch.equal(before, torch.get_rng_state())


def test_a_model_that_leaks_trains_one_document_a_row(tmp_path: Path) -> None:
    said: list[str] = []
    run = train(job_of(tmp_path, OPT), said)
    assert run.status()["packing"] is False
    assert any(line.startswith("packing is off, one document a row: ") for line in said)
    data = {"train": "text.jsonl", "max_length": 64, "packing": False}
    assert losses(run.path) == losses(train(job_of(tmp_path, OPT, "apart", data=data), []).path)


def test_the_balance_of_experts_is_learned_where_it_is_asked_for(tmp_path: Path) -> None:
    def first(**settings: Any) -> tuple[float, list[str]]:
        said: list[str] = []
        name = "-".join(f"{key}{value}" for key, value in settings.items())
        run = train(job_of(tmp_path, MIXTRAL | settings, name or "plain"), said)
        return losses(run.path)[0], said

    plain, _ = first()
    none, _ = first(output_router_logits=True, router_aux_loss_coef=0)
    some, _ = first(output_router_logits=True, router_aux_loss_coef=1)  # a whole number is one
    more, _ = first(output_router_logits=True, router_aux_loss_coef=10.0)
    assert plain == pytest.approx(none)
    assert 1.9 < some - none < 4.0  # two experts of four a token: 2 when they are used alike
    assert more - none == pytest.approx(10 * (some - none), rel=1e-4)
    _, said = first(router_aux_loss_coef=1.0)
    assert "router_aux_loss_coef is not used: output_router_logits is false" in said


def test_pipeline_stages_refuse_what_they_would_leave_out() -> None:
    model = model_from(MIXTRAL | {"output_router_logits": True})
    with pytest.raises(JoyError, match="do not add the router's loss"):
        probes.check_router({}, model, stages=2)


def test_a_model_whose_sizes_do_not_fit_is_the_users_mistake() -> None:
    odd = model_from({**TINY, "vocab_size": 64, "num_attention_heads": 5})
    with pytest.raises(JoyError, match="the model cannot take one text: RuntimeError"):
        probes.check_pass(odd, 64)


def test_texts_beyond_the_positions_of_a_model_are_told_or_refused() -> None:
    assert probes.check_positions(model_from(LLAMA), 256) is None
    said = probes.check_positions(model_from(LLAMA), 512)
    assert said == "data.max_length is 512, and the model was made for 256 positions"
    learned = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16,
               "vocab_size": 64}  # fmt: skip
    with pytest.raises(JoyError, match=r"data\.max_length is 17"):
        probes.check_positions(model_from(learned), 17)
