"""`profile record`: what is written, for programs of several kinds and ends, and what is not
changed."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.profile import capture
from joymigrate.profile.record import reads_back
from joymigrate.profile.recorder.settings import RecorderSettings, stem, trace_files

PROGRAMS = Path(__file__).parent / "programs"
TRAINING = PROGRAMS / "training.py"
PLAIN = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
ARGUMENT = {"dtype", "shape", "stride", "device", "requires_grad"}


def record(
    folder: Path, *command: str, options: tuple[str, ...] = (), **environment: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run a program under the recorder; its outcome, and the recording."""
    out = folder / "trace.jsonl"
    run = [sys.executable, "-m", "joymigrate", "profile", "record", "-o", str(out), *options]
    tail = ["--", *command] if command else []
    done = subprocess.run(
        [*run, *tail],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**PLAIN, **environment},
        timeout=240,
    )
    return done, out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """Output of a plain run, output under the recorder, and the recording."""
    folder = tmp_path_factory.mktemp("trained")
    plain = subprocess.run(
        [sys.executable, str(TRAINING)], capture_output=True, text=True, env=PLAIN, check=True
    )
    done, out = record(folder, "python", str(TRAINING))
    assert done.returncode == 0, done.stderr
    return plain.stdout, done.stdout, out


@pytest.mark.slow
def test_losses_are_the_same_to_the_bit(trained: tuple[str, str, Path]) -> None:
    assert trained[0] == trained[1]


def test_every_line_keeps_the_contract(trained: tuple[str, str, Path]) -> None:
    header, *rest = lines(trained[2])
    assert header["schema"] == "joymigrate.trace/1"
    assert header["device"] == "cpu"
    assert header["steps"] == len(header["step_us"]) == 3
    assert header["complete"]
    operators = [line for line in rest if line["kind"] == "op"]
    for line in operators:
        assert "::" in line["op"]
        assert line["calls"] >= 1
        assert line["phase"] in ("forward", "backward", "optimiser", "other")
        for tensor in capture.tensors([*line["args"], *line["kwargs"].values(), *line["outputs"]]):
            assert set(tensor) == ARGUMENT


def test_phases_call_sites_and_modules_are_those_of_the_program(
    trained: tuple[str, str, Path],
) -> None:
    found = capture.load(trained[2]).operators
    forward = [o for o in found if o.op == "aten::addmm" and o.phase == "forward"]
    assert {o.module for o in forward} == {"0", "2"}
    assert sum(o.calls for o in forward) == 4  # two layers, two accumulated passes
    source = TRAINING.read_text(encoding="utf-8").splitlines()
    lines_of = {int(str(o.where).rpartition(":")[2]) for o in forward}
    assert {source[n - 1].strip() for n in lines_of} == {"loss = model(x).square().mean()"}
    backward = [o for o in found if o.op == "aten::mm" and o.phase == "backward"]
    assert {o.module for o in backward} == {"0", "2"}
    assert {o.where for o in backward} == {o.where for o in forward}
    assert any(o.phase == "optimiser" for o in found)


def test_time_is_shared_out_to_the_operators(trained: tuple[str, str, Path]) -> None:
    read = capture.load(trained[2])
    timed = [o for o in read.operators if o.self_us > 0]
    assert len(timed) >= 0.8 * len(read.operators)
    assert sum(o.self_us for o in read.operators) <= read.step_us
    assert any("aten::linear" in o.parents for o in read.operators if o.op == "aten::addmm")


def test_the_chrome_trace_beside_it_has_steps_and_overloads(
    trained: tuple[str, str, Path],
) -> None:
    chrome = trained[2].with_name(lines(trained[2])[0]["chrome"])
    with gzip.open(chrome, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2", "aten::addmm"} <= names


def test_the_stream_orders_calls_and_knows_who_fed_them(trained: tuple[str, str, Path]) -> None:
    read = capture.load(trained[2])
    assert len(read.stream) == sum(o.calls for o in read.operators)
    names = [read.operators[n].op for n, _ in read.stream]
    relu = next(i for i, name in enumerate(names) if name == "aten::relu")
    assert names[read.stream[relu][1][0]] == "aten::addmm"


def test_what_the_optimiser_does_on_accelerators_is_there_too(
    trained: tuple[str, str, Path],
) -> None:
    names = {o.name for o in capture.load(trained[2]).accelerator}
    assert "aten::_foreach_add_.List" in names


@pytest.mark.parametrize(
    ("kind", "forwards"),
    [
        ("inference", 1),
        pytest.param("own", 1, marks=pytest.mark.slow),
        pytest.param("gan", 2, marks=pytest.mark.slow),
    ],
)
def test_programs_of_other_kinds_have_steps(kind: str, forwards: int, tmp_path: Path) -> None:
    done, out = record(tmp_path, "python", str(TRAINING), KIND=kind)
    assert done.returncode == 0, done.stderr
    read = capture.load(out)
    assert read.header["complete"]
    relu = [o for o in read.operators if o.op == "aten::relu"]
    assert sum(o.calls for o in relu) == forwards
    assert read.trains == (kind != "inference")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param("exception", 1, marks=pytest.mark.slow),
        pytest.param("exit", 5, marks=pytest.mark.slow),
        ("terminated", 143),
    ],
)
def test_a_program_that_ends_early_leaves_what_was_seen(
    end: str, code: int, tmp_path: Path
) -> None:
    done, out = record(tmp_path, "python", str(TRAINING), END=end)
    assert done.returncode == code
    read = capture.load(out)
    assert not read.header["complete"]
    assert {"forward", "backward", "optimiser"} <= {o.phase for o in read.operators}
    assert "ended before every step" in done.stderr
    assert ("on purpose" in done.stderr) == (end == "exception")


@pytest.mark.slow
def test_every_rank_writes_its_own_file(tmp_path: Path) -> None:
    launcher = ("torchrun", "--nproc-per-node", "2", "--master-port", "29877")
    done, out = record(tmp_path, *launcher, str(TRAINING), options=("--steps", "1"))
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        read = capture.load(trace_files(out, rank=rank)[0])
        assert read.header["environment"]["world_size"] == 2
        modules = {o.module for o in read.operators if o.op == "aten::addmm"}
        assert modules == {"0", "2"}  # without the wrapper's own name
    assert not out.exists()


@pytest.mark.slow
def test_a_function_is_recorded_by_name(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import torch\nlayer = torch.nn.Linear(4, 4)\n\n\ndef step():\n"
        "    return layer(torch.ones(2, 4)).sum()\n",
        encoding="utf-8",
    )
    done, out = record(tmp_path, options=("--module", "work.py:step", "--steps", "2"))
    assert done.returncode == 0, done.stderr
    found = {o.op: o for o in capture.load(out).operators}
    assert found["aten::addmm"].where == "work.py:6"
    assert found["aten::ones"].phase == "forward"
    done, _ = record(tmp_path, options=("--module", "work.py:stepp"))
    assert done.returncode == 2
    assert "Did you mean 'step'" in done.stderr


def test_a_program_without_torch_is_one_clear_error(tmp_path: Path) -> None:
    done, _ = record(tmp_path, "python", "-c", "print(1)")
    assert done.returncode == 2
    assert "no operator of torch was seen" in done.stderr


ONCE = """import torch
from torch.nn import EmbeddingBag
from torch.nn.functional import huber_loss
a = torch.randn(4, 4, requires_grad=True)
w, _ = torch.linalg.eigh(a @ a.T)
h = EmbeddingBag(10, 4)(torch.tensor([1, 2, 3]), torch.tensor([0, 2]))
d = torch.ones(3, 3, dtype=torch.float64) @ torch.ones(3, 3, dtype=torch.float64)
loss = torch.lgamma(w.abs() + 1).sum() + huber_loss(h, torch.ones(2, 4)) + d.sum()
loss.backward()
"""


def test_a_script_without_steps_is_recorded_whole(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE, encoding="utf-8")
    done, out = record(tmp_path, "python", "once.py")
    assert done.returncode == 0, done.stderr
    assert "in the whole program" in done.stderr
    assert "no step ended" in done.stderr
    found = {(o.op, o.where): o for o in capture.load(out).operators}
    for op, line in (
        ("_linalg_eigh", 5), ("_embedding_bag", 6), ("_embedding_bag_backward", 6), ("mm", 7),
        ("lgamma", 8), ("digamma", 8), ("huber_loss", 8), ("huber_loss_backward", 8),
    ):  # fmt: skip
        assert found[f"aten::{op}", f"once.py:{line}"].self_us > 0


@pytest.mark.slow
def test_training_without_modules_and_optimisers_has_steps(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\nw = torch.ones(3, requires_grad=True)\nfor _ in range(9):\n"
        "    (w * 2).lgamma().sum().backward()\n    w.data -= 0.1 * w.grad\n",
        encoding="utf-8",
    )
    done, out = record(tmp_path, "python", "own.py", options=("--steps", "2"))
    assert done.returncode == 0, done.stderr
    read = capture.load(out)
    assert read.header["complete"]
    assert read.header["steps"] == 2
    assert {o.op: o.calls for o in read.operators}["aten::lgamma"] == 1


TRACED = """import torch
x = torch.ones(8)
print(torch.compile(lambda a: torch.lgamma(a + 1) * 2, backend="eager")(x).sum().item())
print(torch.jit.trace(lambda a: a * 2, x)(x).sum().item())
"""


def test_code_that_is_given_to_the_compiler_is_recorded(tmp_path: Path) -> None:
    lines = TRACED.splitlines()[:3]
    (tmp_path / "compiled.py").write_text("\n".join(lines), encoding="utf-8")
    done, out = record(tmp_path, "python", "compiled.py")
    assert done.returncode == 0, done.stderr
    assert {"aten::lgamma", "aten::mul"} <= {one.op for one in capture.load(out).operators}


@pytest.mark.slow
def test_compiling_and_tracing_go_on_unwatched(tmp_path: Path) -> None:
    (tmp_path / "traced.py").write_text(TRACED, encoding="utf-8")
    done, _ = record(tmp_path, "python", "traced.py")
    assert done.stdout == "0.0\n16.0\n"
    assert "UserWarning" not in done.stderr
    assert done.returncode == 0


LOADER = """import os, torch
from torch.utils.data import DataLoader, Dataset
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
class Rows(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        print(os.getpid() != MAIN, len(modes()), flush=True)
        return torch.ones(2).lgamma()
MAIN = os.getpid()
if __name__ == "__main__":
    for row in DataLoader(Rows(), batch_size=4, num_workers=1): row.exp()
"""


def test_workers_of_a_loader_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text(LOADER, encoding="utf-8")
    done, out = record(tmp_path, "python", "loader.py")
    assert done.stdout.split("\n")[:-1] == ["True 0"] * 8
    assert "aten::lgamma" not in {o.op for o in capture.load(out).operators}
    assert [p.name for p in tmp_path.glob("*.jsonl")] == [out.name]


@pytest.mark.slow
@pytest.mark.compiler
def test_under_a_rehearsal_the_chip_s_own_operators_are_recorded(tmp_path: Path) -> None:
    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    done, out = record(
        tmp_path,
        "python",
        str(PROGRAMS / "models.py"),
        "gpt",
        options=("--capture", "rehearse"),
        DEVICE="npu",
    )
    assert done.returncode == 0, done.stderr
    read = capture.load(out)
    assert read.header["device"] == "npu"
    assert read.header["chip"] == "ascend"
    assert read.header["rehearsal"] is True
    assert "TASK_QUEUE_ENABLE" not in read.header["environment"]["variables"]  # nobody's choice
    assert not read.timed  # times of a simulation mean nothing
    phases = {o.op: o.phase for o in read.operators}
    assert phases["npu::npu_fusion_attention_v3"] == "forward"
    assert phases["npu::npu_fusion_attention_grad_v3"] == "backward"
    cpu, path = record(
        tmp_path, "python", str(PROGRAMS / "models.py"), "gpt", options=("--steps", "1")
    )
    assert cpu.returncode == 0
    from joymigrate import chips

    predicted = capture.predict(capture.load(path), chips.target("ascend"))
    assert capture.list_seen(read) <= predicted


def test_names_of_files_follow_the_output() -> None:
    assert stem(Path("a/gpt.jsonl.gz")) == "a/gpt"
    assert trace_files(Path("gpt.jsonl")) == (Path("gpt.jsonl"), Path("gpt.trace.json.gz"))
    assert trace_files(Path("gpt"), rank=3)[0] == Path("gpt.rank-3.jsonl")


def test_values_that_json_has_no_word_for_are_written_as_words() -> None:
    import torch

    from joymigrate.profile.recorder.arguments import as_json, key

    assert as_json(key(float("-inf"))) == {"float": "-inf"}
    assert as_json(key(torch.bfloat16)) == {"torch": "bfloat16"}
    assert as_json(key([1, True, None, "x"])) == [1, True, None, "x"]
    assert as_json(key(torch.zeros(2, 3).t())) == {
        "dtype": "float32",
        "shape": [3, 2],
        "stride": [1, 3],
        "device": "cpu",
        "requires_grad": False,
    }


def test_nested_tensors_have_a_layout_and_no_shape() -> None:
    import torch

    from joymigrate.profile.recorder.arguments import as_json, key

    parts = [torch.zeros(2, 4), torch.zeros(3, 4)]
    made = as_json(key(torch.nested.nested_tensor(parts, layout=torch.jagged)))
    assert (made["shape"], made["stride"], made["layout"]) == ([], [], "jagged")


def test_one_and_true_are_told_apart() -> None:
    from joymigrate.profile.recorder.arguments import key

    assert key(1) != key(True)
    assert key(1) != key(1.0)


def test_a_loop_with_ever_new_values_stays_small(tmp_path: Path) -> None:
    import torch

    from joymigrate.profile.recorder.in_process import record_step

    x = torch.rand(4)

    def step() -> None:
        for number in range(2000):
            x.mul(number)

    out = record_step(
        step, tmp_path / "t.jsonl", RecorderSettings(tmp_path, tmp_path, timing=False)
    )
    read = capture.load(out)
    assert len(read.operators) < 300
    assert sum(o.calls for o in read.operators) == 2000


def test_the_recorder_lets_go_of_torch(tmp_path: Path) -> None:
    import torch

    from joymigrate.profile.recorder.in_process import record_step

    before = (torch.nn.Module.__call__, torch.autograd.backward, torch.optim.Adam.step)
    layer = torch.nn.Linear(2, 2)
    record_step(
        lambda: layer(torch.ones(1, 2)).sum().backward(),
        tmp_path / "t.jsonl",
        RecorderSettings(tmp_path, tmp_path, steps=1, stack=False),
    )
    assert (torch.nn.Module.__call__, torch.autograd.backward, torch.optim.Adam.step) == before


def test_a_compiled_model_is_recorded_and_computes_the_same(tmp_path: Path) -> None:
    import torch

    from joymigrate.profile.recorder.in_process import record_step

    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="eager")
    x = torch.rand(2, 4)
    results = []
    out = record_step(
        lambda: results.append(compiled(x)),
        tmp_path / "t.jsonl",
        RecorderSettings(tmp_path, tmp_path, timing=False),
    )
    assert all(torch.equal(result, layer(x)) for result in results)
    assert "aten::addmm" in {o.op for o in capture.load(out).operators}


def test_an_output_without_its_folder_is_an_error(tmp_path: Path) -> None:
    from joymigrate.profile.record import open_recording

    settings = RecorderSettings(tmp_path, tmp_path / "nowhere" / "t.jsonl")
    with pytest.raises(JoyError, match="folder does not exist"), open_recording(settings):
        pass


@pytest.mark.parametrize(
    ("given", "made", "back"),
    [("npu:0", "cpu", True), ("npu:0", "npu:0", False), ("cpu", "cpu", False)],
)
def test_a_copy_to_the_host_is_seen(given: str, made: str, back: bool, tmp_path: Path) -> None:
    row = {"kind": "op", "args": [{"device": given}, 2], "outputs": [{"device": made}]}
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(row, separators=(",", ":")).encode()))
    assert reads_back(path) is back
