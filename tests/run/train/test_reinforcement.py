"""GRPO: its numbers against TRL's, a toy whose optimum is known, and runs that are killed."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.train import assemble, launch  # noqa: E402
from joymigrate.run.train import job as jobs  # noqa: E402
from joymigrate.run.train.reinforcement import actors, policy, rewards, rollouts  # noqa: E402
from tests.run.train.jobs import TINY, document  # noqa: E402

REWARD = "def low(tokens):\n    return sum(t < 64 for t in tokens) / max(1, len(tokens))\n"


def job_of(folder: Path, name: str = "run", steps: int = 30, **options: Any) -> Path:
    (folder / "reward.py").write_text(REWARD)
    prompts = [{"prompt": f"go {n}"} for n in range(16)]
    (folder / "p.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    task = {"name": "grpo", "reward": "reward.py:low", "group": 8, "new_tokens": 4, **options}
    raw = document(
        data={"train": "p.jsonl", "max_length": 64}, task=task, steps=steps, batch={"size": 8},
        optimiser={"lr": 0.01}, schedule="constant", model={"from_config": dict(TINY)}, run=name,
        guard={"spike": 0},
    )  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(raw))
    return path


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_toy_reaches_its_optimum(tmp_path: Path) -> None:
    """A token below 64 earns 1: at random a quarter of the bytes do, and all can."""
    job = jobs.load(job_of(tmp_path))
    start = launch.LaunchOptions(quiet=True, unverified=True)
    assert launch.launch(job, start, lambda line: None) == 0
    found = [line["reward"] for line in lines(tmp_path / "run")]
    assert found[0] < 0.5
    assert max(found[-5:]) > 0.98


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    whole = job_of(tmp_path, "whole", steps=12)
    cut = job_of(tmp_path, "cut", steps=12)
    command = [sys.executable, "-m", "joymigrate", "train", "-q"]
    subprocess.run([*command, str(whole)], check=True, timeout=300)
    process = subprocess.Popen([*command, str(cut)])
    deadline = time.monotonic() + 200
    metrics = tmp_path / "cut" / "metrics.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if metrics.is_file() and metrics.read_text().count("\n") >= 7:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*command, str(cut)], check=True, timeout=300)
    one, other = lines(tmp_path / "whole"), lines(tmp_path / "cut")
    assert [line["loss"] for line in one] == [line["loss"] for line in other]
    assert [line["reward"] for line in one] == [line["reward"] for line in other]


def test_who_writes_is_checked(tmp_path: Path) -> None:
    for options, said in (
        ({"rollouts": "engin"}, r"unknown rollouts 'engin'.*engine"),
        ({"rollouts": "engine", "server": "http://x"}, "not both"),
        ({"writers": 2}, "writers are actors of their own"),
        ({"updates": 0}, "updates is 1 or more, got 0"),
    ):
        with pytest.raises(JoyError, match=said):
            assemble.task_of(jobs.load(job_of(tmp_path, **options)))


@pytest.mark.parametrize("writers", ["two", 0, True])
def test_writers_that_are_no_count_start_no_actors(tmp_path: Path, writers: Any) -> None:
    job = jobs.load(job_of(tmp_path, rollouts="actors", writers=writers))
    with pytest.raises(JoyError, match="writers"):
        launch.launch(job, launch.LaunchOptions(unverified=True), print)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"


def test_what_a_writer_cannot_do_is_an_error_of_ours(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    job = jobs.load(job_of(tmp_path, rollouts="actors", reward="reward.py:high"))
    launch.RunFolder(job.run_folder).begin(job, fresh=False)
    writer = actors.WriterActor(str(job.run_folder))
    with pytest.raises(JoyError, match="no function 'high'") as caught:
        writer.process()
    wrapped = ray.exceptions.RayTaskError("process", "traceback", caught.value)
    assert str(actors.ours(wrapped)) == str(caught.value)
    other = ray.exceptions.RayTaskError("process", "traceback", ValueError("x"))
    assert actors.ours(other) is other


def test_too_few_cards_are_told() -> None:
    said: list[str] = []
    actors.wait_for({"NPU": 2.0}, {"resources": {"NPU": 1}}, 3, said.append)
    actors.wait_for({"CPU": 2.0}, {"num_cpus": 0}, 3, said.append)
    actors.wait_for({"GPU": 3.0}, {"num_gpus": 1}, 3, said.append)
    assert len(said) == 1
    assert "take 3 NPU of Ray, which has 2" in said[0]


def test_our_engine_writes_with_the_newest_weights() -> None:
    """Greedy answers equal transformers', also behind a change of the weights; groups differ."""
    import transformers

    from joymigrate.device import open_device
    from joymigrate.run.train.reinforcement.engine_writer import (
        EngineWriter,
        config_of,
        whole_weights,
    )

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("qwen2", vocab_size=300, **{
        key: value for key, value in TINY.items() if key != "model_type"})  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    writer = EngineWriter(config_of(model), [299], open_device(None), 40)
    prompts = [[5, 6, 7], [8], [5, 6, 9, 10]]
    for _ in range(2):
        writer.load(whole_weights(model))
        found = writer.write(prompts, 2, 6, 1e-6, seed=3)
        for prompt, group in zip(prompts, found, strict=True):
            made = model.generate(
                torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=299,
                pad_token_id=0,
            )  # fmt: skip
            assert [one.tokens for one in group] == [made[0, len(prompt) :].tolist()] * 2
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.1 * torch.randn_like(weight)
    drawn = writer.write(prompts, 8, 6, 1.0, seed=3)
    assert len({tuple(one.tokens) for one in drawn[0]}) > 4
    # A text depends on its seed alone, not on what is written beside it.
    alone = writer.write(prompts[1:2], 8, 6, 1.0, seed=3, first=1)
    assert [one.tokens for one in alone[0]] == [one.tokens for one in drawn[1]]


@pytest.mark.slow
def test_updates_take_several_steps_with_the_same_answers(tmp_path: Path) -> None:
    """Two updates equal two passes by hand with the log-probabilities of the first as the old."""
    job = jobs.load(job_of(tmp_path, steps=2, updates=3, rollouts="engine"))
    start = launch.LaunchOptions(quiet=True, unverified=True)
    assert launch.launch(job, start, lambda line: None) == 0
    one = jobs.load(job_of(tmp_path, "one", steps=2, rollouts="engine"))
    assert launch.launch(one, start, lambda line: None) == 0
    several, single = lines(tmp_path / "run"), lines(tmp_path / "one")
    assert several[0]["reward"] == single[0]["reward"]
    # On the first pass gains of a group are 0 together; later ones move away from it.
    assert abs(single[0]["loss"]) < 1e-6 < abs(several[0]["loss"])


@pytest.mark.slow
def test_ten_kills_of_actors_change_no_loss(tmp_path: Path) -> None:
    """Writers, trainers and the controller die; the losses are those of one process."""
    psutil = pytest.importorskip("psutil")
    pytest.importorskip("ray")
    steps = 33
    command = [sys.executable, "-m", "joymigrate", "train", "-q"]
    whole = job_of(tmp_path, "whole", steps=steps, rollouts="engine", updates=2)
    subprocess.run([*command, str(whole)], check=True, timeout=600)
    cut = job_of(tmp_path, "cut", steps=steps, rollouts="actors", writers=2, updates=2)
    command = [*command, "--max-restarts", "20", str(cut)]
    metrics = tmp_path / "cut" / "metrics.jsonl"

    def reached() -> int:
        return metrics.read_text().count("\n") if metrics.is_file() else 0

    def workers(kind: str) -> list[Any]:
        found = []
        for one in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if one.cmdline()[:1] and one.cmdline()[0].startswith(f"ray::{kind}"):
                    found.append(one)
        return found

    process = subprocess.Popen(command)
    killed: list[str] = []
    order = ["WriterActor", "TrainerActor", "WriterActor", "controller", "TrainerActor"] * 2
    deadline = time.monotonic() + 3000
    try:
        for number, kind in enumerate(order):
            before = reached()
            # Not at once: kills at several places of a step, and before a checkpoint.
            while time.monotonic() < deadline and reached() < max(before, 1) + 1 + number % 2:
                assert process.poll() in (None, 0)
                if process.poll() == 0:
                    break
                time.sleep(0.01)
            if process.poll() == 0:
                break
            if kind == "controller":
                process.kill()
                process.wait()
                process = subprocess.Popen(command)
                killed.append(kind)
                continue
            victims = workers(kind)
            if victims:
                victims[number % len(victims)].kill()
                killed.append(kind)
        assert process.wait(timeout=max(1, deadline - time.monotonic())) == 0
    finally:
        if process.poll() is None:
            process.kill()
    assert len(killed) == 10, killed
    one, other = lines(tmp_path / "whole"), lines(tmp_path / "cut")
    assert [line["loss"] for line in one] == [line["loss"] for line in other]
    assert [line["reward"] for line in one] == [line["reward"] for line in other]


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_the_loss_is_that_of_trl(tmp_path: Path, beta: float) -> None:
    """The same rollouts, old log-probabilities and reference, through TRL's own loss."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    import transformers

    from joymigrate.run.train import tokenizer

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("qwen2", vocab_size=300, **{
        key: value for key, value in TINY.items() if key != "model_type"})  # fmt: skip
    # TRL opens its reference where the model was opened.
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    known = tokenizer.byte_level()
    settings = trl.GRPOConfig(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, num_generations=4, beta=beta,
        per_device_train_batch_size=4, max_completion_length=6, loss_type="grpo", bf16=False,
        epsilon_high=0.3, scale_rewards="group", use_bias_correction_kl=False,
    )  # fmt: skip
    rows = datasets.Dataset.from_list([{"prompt": "a"}] * 4)
    trainer = trl.GRPOTrainer(
        model=model, reward_funcs=lambda **k: [0.0], args=settings, train_dataset=rows,
        processing_class=known,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.eval()
    prompt, count = torch.randint(300, (8, 5)), torch.tensor([6, 3, 1, 6, 2, 5, 4, 6])
    answer = torch.randint(300, (8, 6))
    mask = (torch.arange(6) < count[:, None]).long()
    gains = policy.advantages(torch.tensor([1.0, 0, 0, 2, 1, 1, 1, 1]), 4)
    ids = torch.cat([prompt, answer], 1)

    def logs_of(shift: float) -> Any:
        seen = torch.cat([torch.ones_like(prompt), mask], 1)
        logits = model(input_ids=ids, attention_mask=seen).logits[:, 4:-1]
        found = logits.log_softmax(-1).gather(-1, answer[..., None])[..., 0]
        return found + shift * torch.randn(found.shape, generator=torch.Generator().manual_seed(1))

    with torch.no_grad():
        before, reference = logs_of(0.4), logs_of(-0.3)
    inputs = {
        "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt), "completion_ids": answer,
        "completion_mask": mask, "advantages": gains, "old_per_token_logps": before,
        "ref_per_token_logps": reference, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    theirs = trainer._compute_loss(model, inputs)
    ours = policy.answer_losses(
        logs_of(0.0), before, gains, mask, low=0.2, high=0.3, beta=beta, reference_NT=reference
    ).mean()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-5)
    slopes = [
        torch.autograd.grad(loss, model.model.embed_tokens.weight)[0] for loss in (ours, theirs)
    ]
    assert torch.allclose(*slopes, atol=1e-5)


def test_equal_rewards_teach_nothing_and_groups_stand_alone() -> None:
    found = policy.advantages(torch.tensor([1.0, 1, 0, 1]), 2)
    assert found[:2].tolist() == [0, 0]
    assert found[2] == -found[3] < 0
    plain = policy.advantages(torch.tensor([0.0, 1]), 2, scale=False)
    assert plain.tolist() == [-0.5, 0.5]


def test_clipping_stops_the_slope_beyond_the_bounds() -> None:
    logs = torch.log(torch.tensor([[1.5], [1.1], [0.5], [0.5]])).requires_grad_()
    gains = torch.tensor([1.0, 1.0, 1.0, -1.0])
    made = policy.answer_losses(logs, torch.zeros(4, 1), gains, torch.ones(4, 1))
    assert torch.allclose(made.detach(), torch.tensor([-1.2, -1.1, -0.5, 0.8]))
    made.sum().backward()
    assert logs.grad is not None
    assert (logs.grad[:, 0] != 0).tolist() == [False, True, True, False]


def test_a_reward_that_is_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("def bad(completion): return None\ndef odd(x): return 1\n")
    facts = {"prompt": "a", "completion": "b", "tokens": [1], "record": {}}
    with pytest.raises(JoyError, match="None, not a finite number"):
        rewards.load_reward("r.py:bad", tmp_path)(facts)
    with pytest.raises(JoyError, match="asks for 'x'"):
        rewards.load_reward("r.py:odd", tmp_path)
    with pytest.raises(JoyError, match=r"no reward 'none\.py:f'"):
        rewards.load_reward("none.py:f", tmp_path)
    with pytest.raises(JoyError, match="no function 'good'"):
        rewards.load_reward("r.py:good", tmp_path)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(JoyError, match="gave no answers"):
        rollouts.ask_server("http://127.0.0.1:9", "m", [[1]], 2, 3, 1.0, 0)


@pytest.mark.slow
def test_a_trained_reward_model_judges_answers_beside_a_function(tmp_path: Path) -> None:
    """Pairs prefer letters early in the alphabet; answers learn to earn that model's score."""
    pairs = [{"prompt": f"go {n}", "chosen": "abba" * 2, "rejected": "zyzy" * 2} for n in range(32)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    raw = document(
        data={"train": "pairs.jsonl", "max_length": 64}, task="reward", steps=10, run="judge",
        batch={"size": 8}, optimiser={"lr": 0.01}, model={"from_config": dict(TINY)},
        checkpoint={"export": True},
    )  # fmt: skip
    (tmp_path / "judge.yaml").write_text(json.dumps(raw))
    start = launch.LaunchOptions(quiet=True, unverified=True)
    assert launch.launch(jobs.load(tmp_path / "judge.yaml"), start, lambda line: None) == 0
    both = ["reward.py:low", "judge/model"]
    job = jobs.load(job_of(tmp_path, steps=20, reward=both))
    assert launch.launch(job, start, lambda line: None) == 0
    found = [line["reward"] for line in lines(tmp_path / "run")]
    assert sum(found[-5:]) > sum(found[:5])

    from joymigrate.run.train.tasks._reward_model import RewardModel

    judge = RewardModel(tmp_path / "judge" / "model", 64)
    scores = judge.scores(["go 1"] * 3, ["abba" * 2, "zyzy" * 2, "abba" * 2], "cpu")
    assert len(judge.scores(["go 1"] * 2, ["", "."], "cpu")) == 2  # a policy may write these too
    assert scores[0] > scores[1]
    assert scores[0] == pytest.approx(scores[2])
    with pytest.raises(JoyError, match="longer than 256 tokens"):
        judge.scores(["go"], ["a" * 400], "cpu")
    with pytest.raises(JoyError, match="no reward model"):
        RewardModel(tmp_path, 64)
