"""Public recommendation programs before and after their migration: the losses of 20 steps.

    python benchmarks/tables_public.py --torchrec CHECKOUT --peer PYTHON [--dlrm CHECKOUT]

CHECKOUT is github.com/pytorch/torchrec (a48cef7 was measured) and github.com/facebookresearch/dlrm
(090956ee); PYTHON is one that has torchrec and fbgemm-gpu-cpu. The dlrm program wants
scikit-learn in the Python that runs this file.

- TorchRec's `bert4rec.py`, `predict_using_torchrec.py` and `train_dlrm.py` are taken as they are
  and rewritten by `joymigrate rewrite --unsafe`. The same weights and batches are trained by
  TorchRec, by the rewritten file on the CPU, and by it under `joymigrate rehearse --policy error`
  (an operator on the CPU ends it) on the simulated chip.
- `dlrm_s_pytorch.py` is started as a user does, with each of its kinds of embeddings: the original
  on the CPU, the rewritten one under `joymigrate rehearse --fill --policy error`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOYMIGRATE = [sys.executable, "-W", "ignore", "-m", "joymigrate"]
STEPS = 20
MODELS = {
    "BERT4Rec": "examples/bert4rec/models/bert4rec.py",
    "prediction": "examples/prediction/predict_using_torchrec.py",
    "golden_training": "examples/golden_training/train_dlrm.py",
}
START = """
import importlib.util, json, os, sys
import torch
file, weights, device, steps, result = sys.argv[1:]
sys.path.insert(0, os.path.dirname(file))
spec = importlib.util.spec_from_file_location("public", file)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
if device != "cpu":
    import torch_npu
torch.manual_seed(0)
chip = torch.device(device)
losses = []
def begin(model):
    if weights.startswith("save:"):
        torch.save(model.state_dict(), weights[5:])
    else:
        model.load_state_dict(torch.load(weights, map_location=device))
"""
TRAIN = {
    "BERT4Rec": """
model = module.BERT4Rec(500, 16, 32, nhead=4, num_layers=2, dropout=0.0, device=chip)
begin(model)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
draw = torch.Generator().manual_seed(1)
for _ in range(int(steps)):
    lengths = torch.randint(0, 17, (32,), generator=draw)
    ids = torch.randint(1, 500, (int(lengths.sum()),), generator=draw)
    wanted = torch.randint(0, 500, (32 * 16,), generator=draw)
    batch = module.KeyedJaggedTensor.from_lengths_sync(["item"], ids, lengths)
    logits = model(batch.to(chip)).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, wanted.to(device))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(float(loss.detach().cpu()))
""",
    "prediction": """
data = module.RecommendationDataset(1000, 500, 256 * int(steps))
loader = torch.utils.data.DataLoader(data, batch_size=256)
sizes = {"user_id": 1000, "item_id": 500, "user_category": 10, "item_category": 20}
tables = module.EmbeddingBagCollection(device=chip, tables=[
    module.EmbeddingBagConfig(embedding_dim=64, name=n, num_embeddings=size, feature_names=[n])
    for n, size in sizes.items()])
net = module.TorchRecDLRM(tables, 4, [32, 64], [128, 64, 1]).to(chip)
model = module.DLRMRatingWrapper(net).to(chip)
begin(model)
optimiser = torch.optim.Adam(model.parameters(), lr=0.001, weight_decay=1e-5)
for batch in loader:
    keyed = module.create_kjt_from_batch(batch, chip)
    found = model(batch["dense_features"].to(chip), keyed)
    loss = torch.nn.functional.mse_loss(found, batch["rating"].to(chip))
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimiser.step()
    losses.append(float(loss.detach().cpu()))
""",
}
TRAIN["golden_training"] = """
import tempfile
import torch.distributed as dist
store = f"file://{tempfile.mktemp()}"
backend = "gloo" if device == "cpu" else "hccl"
dist.init_process_group(backend, init_method=store, rank=0, world_size=1)
if device != "cpu":
    torch.npu.set_device(0)
    chip = torch.device("npu:0")
names, numbers = module.DEFAULT_CAT_NAMES, module.DEFAULT_INT_NAMES
def start(weight):  # TorchRec draws fused rows anew when they are cut
    with torch.no_grad():
        return weight.copy_(torch.linspace(-0.2, 0.2, weight.numel()).view_as(weight))
tables = [module.EmbeddingBagConfig(name="t_" + n, embedding_dim=16, num_embeddings=5000,
                                    feature_names=[n], init_fn=start) for n in names]
bags = module.EmbeddingBagCollection(tables=tables, device=chip)
net = module.DLRM(bags, len(numbers), [64, 16], [64, 1], dense_device=chip)
begin(net)
train = module.DLRMTrain(net)
module.apply_optimizer_in_backward(
    module.RowWiseAdagrad, train.model.sparse_arch.parameters(), {"lr": 0.01})
sharder = module.EmbeddingBagCollectionSharder(qcomm_codecs_registry=None)
model = module.DistributedModelParallel(module=train, device=chip, sharders=[sharder])
rest = module.KeyedOptimizerWrapper(
    dict(module.in_backward_optimizer_filter(model.named_parameters())),
    lambda params: torch.optim.Adagrad(params, lr=0.01))
pipeline = module.TrainPipelineSparseDist(model, rest, chip)
data = iter(module.RandomRecDataset(keys=names, batch_size=32, hash_size=5000, ids_per_feature=1,
                                    num_dense=len(numbers), manual_seed=1))
for _ in range(int(steps)):
    loss, _, _ = pipeline.progress(data)
    losses.append(float(loss.detach().cpu()))
"""
END = """
with open(result, "w") as file:
    json.dump(losses, file)
"""
DLRM = (
    f"dlrm_s_pytorch.py --mini-batch-size=16 --data-size={16 * STEPS} --print-freq=1 "
    "--test-freq=100 --arch-embedding-size=40-30-20 --arch-sparse-feature-size=8 "
    "--arch-mlp-bot=4-16-8 --arch-mlp-top=14-8-1"
)
DLRM_KINDS = {
    "sparse gradients, sum of squares": "",
    "binary cross-entropy": "--loss-function=bce",
    "learned weights of the rows": "--weighted-pooling=learned",
    "quotient-remainder tables": "--qr-flag --qr-threshold=10 --qr-collisions=4",
}
TABLE_KINDS = {
    "SGD": "",
    "binary cross-entropy": "--loss-function=bce",
    "fixed weights of the rows": "--weighted-pooling=fixed",
    "learned weights of the rows": "--weighted-pooling=learned",
    "Adagrad": "--optimizer=adagrad",
    "row-wise Adagrad": "--optimizer=rwsadagrad",
}
PUT = """\
    from joymigrate.run.train.tables import RowOptimiser, put_on_tables

    kinds = {"sgd": "sgd", "adagrad": "adagrad", "rwsadagrad": "rowwise_adagrad"}
    put_on_tables(dlrm, RowOptimiser(kinds[args.optimizer], args.learning_rate))
"""
LOSS = re.compile(r"Finished training it .*loss ([0-9.einf-]+)")


def run(command: list[str], folder: Path | None = None) -> str:
    """What a program printed; its end where it failed."""
    more = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **more}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        sys.exit(f"{' '.join(command[:12])}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout + done.stderr


def rewritten(source: Path, target: Path) -> None:
    """The migrated copy of a folder, in the style that runs on every device."""
    how = ["--to", "ascend", "--style", "agnostic", "--unsafe", "-q", "-o", str(target)]
    run([*JOYMIGRATE, "rewrite", str(source), *how])


def rehearsal(said: str) -> str:
    """The lines of a rehearsal that say where its operators ran."""
    lines = said[said.rindex("mode run") :].splitlines()
    return "\n".join(line for line in lines if "operators" in line or "fell back" in line)


def apart(first: list[float], found: list[float]) -> float:
    """The largest difference of two runs; they have to be equally long."""
    if len(first) != len(found) or not first:
        sys.exit(f"{len(first)} losses and {len(found)}: nothing to compare")
    return max(abs(a - b) for a, b in zip(first, found, strict=True))


def on_tables(name: str, torchrec: Path, peer: str, folder: Path) -> None:
    """One of TorchRec's examples on joymigrate's tables."""
    (folder / "before").mkdir(parents=True)
    program = folder / "before" / "public.py"
    program.write_bytes((torchrec / MODELS[name]).read_bytes())
    (folder / "train.py").write_text(START + TRAIN[name] + END)
    rewritten(folder / "before", folder / "after")
    weights, result = str(folder / "weights.pt"), folder / "losses.json"
    rehearse = [*JOYMIGRATE, "rehearse", "--to", "ascend", "--policy", "error", "--", "python"]
    first: list[float] = []
    for title, start, source, given, device in (
        ("TorchRec, CPU", [peer], "before", f"save:{weights}", "cpu"),
        ("migrated, CPU", [sys.executable], "after", weights, "cpu"),
        ("migrated, rehearsed", rehearse, "after", weights, "npu"),
    ):
        said = run([*start, str(folder / "train.py"), str(folder / source / "public.py"),
                    given, device, str(STEPS), str(result)])  # fmt: skip
        losses = json.loads(result.read_text())
        first = first or losses
        print(f"{name}, {title}: {losses[0]:.6f} … {losses[-1]:.6f}, "
              f"largest difference {apart(first, losses):.1e} (<= 1e-5)", flush=True)  # fmt: skip
        if device != "cpu":
            print(rehearsal(said), flush=True)


def dlrm(checkout: Path, folder: Path) -> None:
    """The public DLRM program, started as a user does."""
    leave = shutil.ignore_patterns(".git", ".joymigrate")
    shutil.copytree(checkout, folder / "before", ignore=leave)
    rewritten(folder / "before", folder / "after")
    rehearse = [*JOYMIGRATE, "rehearse", "--to", "ascend", "--devices", "1", "--fill",
                "--policy", "error", "--", "python"]  # fmt: skip
    for name, more in DLRM_KINDS.items():
        words = [*DLRM.split(), *more.split()]
        first = [float(x) for x in LOSS.findall(run([sys.executable, *words], folder / "before"))]
        said = run([*rehearse, *words, "--use-gpu"], folder / "after")
        found = [float(x) for x in LOSS.findall(said)]
        print(f"dlrm, {name}: {len(first)} losses, {first[0]:.6f} … {first[-1]:.6f}; rehearsed: "
              f"largest difference {apart(first, found):.1e} (<= 1e-5)", flush=True)  # fmt: skip
        print(rehearsal(said), flush=True)


def dlrm_on_tables(checkout: Path, folder: Path) -> None:
    """The same program with its embeddings put on joymigrate's tables: lines a person adds."""
    shutil.copytree(checkout, folder / "before", ignore=shutil.ignore_patterns(".git"))
    rewritten(folder / "before", folder / "after")
    program = folder / "after" / "dlrm_s_pytorch.py"
    program.write_text(put(program.read_text()))
    rehearse = [*JOYMIGRATE, "rehearse", "--to", "ascend", "--devices", "1", "--policy", "error",
                "--", "python"]  # fmt: skip
    for name, more in TABLE_KINDS.items():
        words = [*DLRM.split(), *more.split()]
        first = [float(x) for x in LOSS.findall(run([sys.executable, *words], folder / "before"))]
        said = run([*rehearse, *words, "--use-gpu"], folder / "after")
        found = [float(x) for x in LOSS.findall(said)]
        print(f"dlrm on tables, {name}: {len(first)} losses, {first[0]:.6f} … {first[-1]:.6f}; "
              f"rehearsed: largest difference {apart(first, found):.1e} (<= 1e-5)",
              flush=True)  # fmt: skip
        print(rehearsal(said), flush=True)


def put(text: str) -> str:
    """Two lines behind the model, and the program's refusal of Adagrad on a device left out."""
    place = "    if not args.inference_only:\n        if use_gpu and"
    refusal = 'sys.exit("GPU version of Adagrad is not supported by PyTorch.")'
    for wanted in (place, refusal):
        if text.count(wanted) != 1:
            sys.exit(f"the program has {text.count(wanted)} times: {wanted.strip()}")
    return text.replace(refusal, "pass").replace(place, PUT + place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchrec", type=Path, help="a checkout")
    parser.add_argument("--peer", help="a Python that has torchrec")
    parser.add_argument("--dlrm", type=Path, help="a checkout")
    parser.add_argument(
        "--only", choices=[*MODELS, "dlrm"], help="one of them; dlrm: on tables alone"
    )
    options = parser.parse_args()
    if (options.torchrec is None) != (options.peer is None) or not (options.dlrm or options.peer):
        parser.error("name --torchrec and --peer, or --dlrm, or all three")
    with tempfile.TemporaryDirectory() as place:
        if options.torchrec:
            for name in [options.only] if options.only else MODELS:
                on_tables(name, options.torchrec, options.peer, Path(place) / name)
        if options.dlrm:
            dlrm_on_tables(options.dlrm, Path(place) / "tables")
            if not options.only:
                dlrm(options.dlrm, Path(place) / "dlrm")


if __name__ == "__main__":
    main()
