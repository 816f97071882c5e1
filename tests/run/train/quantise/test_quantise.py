"""Quantised models: what the searches gain, what is written, what the engine makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions, Request
from joymigrate.run.train.formats.open import open_quantised
from joymigrate.run.train.formats.stored_linears import Int8Linear
from joymigrate.run.train.formats.tensors import TensorFolder
from joymigrate.run.train.quantise.data import CalibrationSamples, read_samples
from joymigrate.run.train.quantise.options import QuantiseOptions
from joymigrate.run.train.quantise.verdict import judge
from joymigrate.run.train.quantise.work import QuantisationResult, quantise
from tests.run.serve.engine.models import drain, greedy, prompts, save, tokens
from tests.run.train.formats.test_msmodelslim import FILES
from tests.run.train.quantise.models import samples, tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `even` and `outliers`, and samples."""
    place = tmp_path_factory.mktemp("quantise")
    tiny(place / "even")
    tiny(place / "outliers", outliers=True)
    samples(place / "samples.jsonl")
    return place


def used(place: Path) -> CalibrationSamples:
    return read_samples(place / "samples.jsonl", place / "even")


def errors(
    place: Path, model: str, options: QuantiseOptions, name: str
) -> tuple[QuantisationResult, list[float]]:
    """Quantise, and the error of every layer by itself, on samples that were not seen."""
    seen, held, _ = used(place).split()
    made = quantise(place / model, place / name, seen, options, replace_out=True)
    _, document = judge(place / model, place / name, held)
    return made, [one["own"] for one in document["quantise"]["errors"]]


@pytest.mark.parametrize(
    ("scheme", "most"),
    # The bounds asked for: a third of naive W8A8 by SmoothQuant, half of rounding to nearest by AWQ
    [("w8a8", 1 / 3), ("w4a16", 1 / 2)],
)
def test_outlier_channels_are_smoothed(place: Path, scheme: str, most: float) -> None:
    _, naive = errors(place, "outliers", QuantiseOptions(scheme=scheme, search=False), "naive")
    _, found = errors(place, "outliers", QuantiseOptions(scheme=scheme), "searched")
    assert all(ours <= most * theirs for ours, theirs in zip(found, naive, strict=True))


@pytest.mark.parametrize("scheme", ["w8a8", "w4a16"])
def test_without_outliers_the_search_does_no_harm(place: Path, scheme: str) -> None:
    _, naive = errors(place, "even", QuantiseOptions(scheme=scheme, search=False), "naive")
    _, found = errors(place, "even", QuantiseOptions(scheme=scheme), "searched")
    assert all(ours <= 1.05 * theirs for ours, theirs in zip(found, naive, strict=True))


def test_planted_outliers_change_nothing_but_the_range(place: Path) -> None:
    # Else the bounds above would hold against another model.
    plain, planted = reference(place / "even"), reference(place / "outliers")
    ids = torch.tensor(prompts([20]))
    torch.testing.assert_close(plain(ids).logits, planted(ids).logits, rtol=1e-4, atol=1e-4)


def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def dequantised(folder: Path) -> Any:
    """transformers' model with the weights that the codes stand for; static inputs rounded."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config).float().eval()
    source, reader = TensorFolder(folder), open_quantised(folder)
    assert reader is not None
    state = {}
    for name, module in model.named_modules():
        linear = reader.linear(name) if isinstance(module, torch.nn.Linear) else None
        if isinstance(linear, Int8Linear) and linear.x_scale is not None:
            module.register_forward_pre_hook(rounding(linear))
    for name in model.state_dict():
        linear = reader.linear(name.rpartition(".")[0])
        if linear is None:
            tied = name == "lm_head.weight" and name not in source
            state[name] = source.raw("model.embed_tokens.weight" if tied else name).float()
        elif name.endswith(".bias"):
            state[name] = linear.bias
        else:
            state[name] = linear.dense()
    model.load_state_dict(state)
    return model


def rounding(linear: Int8Linear) -> Any:
    """A hook that rounds and clips a linear's inputs as its static scale says."""
    assert linear.x_scale is not None
    scale, offset = float(linear.x_scale), float(linear.x_offset or 0)

    def hook(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return (((args[0] / scale).round() + offset).clamp(-128, 127) - offset) * scale

    return hook


def scores(folder: Path, ids: list[int]) -> torch.Tensor:
    """The engine's log-probabilities of a prompt's tokens."""
    options = EngineOptions(dtype="float32", kv_blocks=24, max_model_len=100, max_batch_tokens=20)
    engine = load_engine(folder, options).engine
    engine.add(Request("0", tuple(ids), greedy(1, prompt_logprobs=0)))
    found = drain(engine)["0", 0]
    said = [one.logprob for one in found[0].prompt_logprobs or () if one]
    return torch.tensor(said)


SCHEMES = {
    "w8a8": QuantiseOptions(),
    "w8a8 static": QuantiseOptions(static=True),
    "w8a8 msmodelslim": QuantiseOptions(format="msmodelslim"),
    "w8a8 static msmodelslim": QuantiseOptions(static=True, format="msmodelslim"),
    "w4a16": QuantiseOptions(scheme="w4a16"),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_the_engine_computes_what_the_written_weights_say(place: Path, name: str) -> None:
    made = quantise(
        place / "outliers", place / "served", used(place), SCHEMES[name], replace_out=True
    )
    ids = prompts([40])[0]
    agree(made.out, ids)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_the_engine_serves_msmodelslims_own_files(kind: str) -> None:
    agree(FILES / kind, prompts([40])[0])


def agree(folder: Path, ids: list[int]) -> None:
    """The engine against transformers with dequantised weights: cosine at least 0.999."""
    with torch.inference_mode():
        logits = dequantised(folder)(torch.tensor([ids])).logits[0]
    want = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)
    got = scores(folder, ids)
    assert float(torch.cosine_similarity(got, want, dim=0)) >= 0.999


def test_the_same_inputs_give_the_same_files(place: Path) -> None:
    hashes = []
    for _ in range(2):
        made = quantise(
            place / "even",
            place / "again",
            used(place),
            QuantiseOptions(scheme="w4a16"),
            replace_out=True,
        )
        hashes.append({p.name: p.read_bytes() for p in sorted(made.out.iterdir())})
    assert hashes[0] == hashes[1]


def test_every_linear_of_a_llama_gets_its_scale_folded(place: Path) -> None:
    made, _ = errors(place, "outliers", QuantiseOptions(), "folded")
    where = {one.linears[0]: one.folded_into for one in made.groups}
    assert where == {
        "self_attn.o_proj": "self_attn.v_proj",  # two key heads feed four queries
        "mlp.down_proj": "mlp.up_proj",
        "self_attn.q_proj": "input_layernorm",
        "mlp.gate_proj": "post_attention_layernorm",
    }


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "phi3", "granite", "olmo2"])
def test_other_families_are_quantised_by_their_structure(tmp_path: Path, kind: str) -> None:
    more = {"head_dim": 16} if kind == "qwen3" else {}
    save(tmp_path / "model", kind, **more)
    path = samples(tmp_path / "samples.jsonl", count=4)
    seen = read_samples(path, tmp_path / "model")
    made = quantise(tmp_path / "model", tmp_path / "out", seen, QuantiseOptions())
    found, document = judge(tmp_path / "model", tmp_path / "out", seen)
    assert found, document["reason"]
    # A linear whose scale cannot move is rounded as it is, and says why.
    assert all(one.reason for one in made.groups if one.folded_into is None and one.parameter)
    if kind == "olmo2":  # its norms come after, so no norm makes an input
        assert {one.linears[0]: one.reason for one in made.groups}["self_attn.q_proj"]


def test_a_named_linear_stays_plain(place: Path) -> None:
    options = QuantiseOptions(ignore=("*.down_proj",))
    made, _ = errors(place, "even", options, "ignored")
    reader = open_quantised(made.out)
    assert reader is not None
    assert reader.linear("model.layers.1.mlp.down_proj") is None
    config = json.loads((made.out / "config.json").read_text())
    assert "model.layers.1.mlp.down_proj" in config["quantization_config"]["ignore"]
    agree(made.out, prompts([12])[0])


def test_parts_of_one_product_may_differ(place: Path) -> None:
    made, _ = errors(place, "even", QuantiseOptions(scheme="w4a16", ignore=("*.k_proj",)), "mixed")
    agree(made.out, prompts([12])[0])


def test_tokens_of_w8a8_are_those_of_the_plain_model(place: Path) -> None:
    # Not in general: here the plain model's first choices stand out by more than the error.
    quantise(place / "outliers", place / "w8", used(place), QuantiseOptions(), replace_out=True)
    found, document = judge(place / "outliers", place / "w8", used(place))
    assert found
    assert document["quantise"]["top1"]["or_tie"] >= 0.97
    options = EngineOptions(dtype="float32", kv_blocks=24, max_model_len=100)
    engine = load_engine(place / "w8", options).engine
    engine.add(Request("0", tuple(prompts([9])[0]), greedy(4)))
    assert len(tokens(drain(engine)["0", 0])) == 4


def test_a_damaged_weight_fails_the_verdict_and_is_named(place: Path) -> None:
    from safetensors.torch import load_file, save_file

    made = quantise(
        place / "even", place / "damaged", used(place), QuantiseOptions(), replace_out=True
    )
    path = made.out / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.mlp.down_proj.weight_scale"] *= 3
    save_file(weights, path)
    found, document = judge(place / "even", made.out, used(place))
    assert not found
    assert document["first_divergence"]["module"] == "model.layers.1"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scheme": "w4a4"}, "w4a4"),
        ({"scheme": "w4a16", "format": "msmodelslim"}, "no form"),
        ({"scheme": "w4a16", "static": True}, "--static"),
        ({"group": 128}, "--group"),
        ({"scheme": "w4a16", "group": 12}, "whole int32"),
        ({"alpha": 1.5}, "alpha"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Any, reason: str) -> None:
    with pytest.raises(JoyError, match=reason):
        QuantiseOptions(**options)


def test_a_group_that_does_not_fit_is_refused_with_one_that_does(place: Path) -> None:
    options = QuantiseOptions(scheme="w4a16", group=128)
    with pytest.raises(JoyError, match="groups of 128") as error:
        quantise(place / "even", place / "wide", used(place), options)
    assert "--group 32" in (error.value.help or "")
    assert not (place / "wide").exists()


def test_a_quantised_model_is_not_quantised_again(place: Path) -> None:
    with pytest.raises(JoyError, match="already"):
        quantise(FILES / "dynamic", place / "twice", used(place), QuantiseOptions())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "object"),
        ('{"tokens": [1, "a"]}', "whole numbers"),
        ('{"text": "no tokenizer here"}', "tokenizer"),
        ('{"tokens": [1]}', "no sample"),
    ],
)
def test_bad_samples_are_one_clear_error(place: Path, line: str, reason: str) -> None:
    path = place / "bad.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(JoyError, match=reason):
        read_samples(path, place / "even")


def test_keys_beside_a_text_and_packed_files_are_read(tmp_path: Path) -> None:
    import gzip

    text = '{"tokens": [5, 6, 7], "label": 1}\n\n{"tokens": [8, 9]}\n'
    packed = tmp_path / "some.jsonl.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_samples(packed, tmp_path).ids == ((5, 6, 7), (8, 9))
    packed.write_bytes(gzip.compress(b'{"tokens": [1, 2]}\n[3]\n'))
    with pytest.raises(JoyError) as error:
        read_samples(packed, tmp_path)
    assert error.value.where == f"{packed}:2"
    packed.write_bytes(gzip.compress(text.encode())[:-12])
    with pytest.raises(JoyError, match="cannot read"):
        read_samples(packed, tmp_path)


def test_a_label_beside_a_text_is_no_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from joymigrate.run.train.quantise import data

    monkeypatch.setattr(
        data, "load_tokenizer", lambda _: lambda text: {"input_ids": list(text.encode())}
    )
    path = place / "labelled.jsonl"
    path.write_text(
        '{"text": "good", "label": 1}\n{"prompt": "why?", "completion": "so", "id": 3}\n'
    )
    assert [len(ids) for ids in read_samples(path, place / "even").ids] == [4, 6]
