"""A public TorchRec model before and after its migration: the losses of 20 steps.

    python benchmarks/tables_public.py --torchrec CHECKOUT --peer PYTHON

CHECKOUT is github.com/pytorch/torchrec (a48cef7 was measured), PYTHON one that has torchrec and
fbgemm-gpu-cpu. `examples/bert4rec/models/bert4rec.py` is taken as it is, and rewritten by
`joymigrate rewrite --unsafe`. The same weights and batches are trained by TorchRec, by the
rewritten file on the CPU, and by it under `joymigrate rehearse` on the simulated chip.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = "examples/bert4rec/models/bert4rec.py"
STEPS = 20
TRAIN = """
import importlib.util, json, sys
import torch
file, weights, device, steps, result = sys.argv[1:]
spec = importlib.util.spec_from_file_location("bert4rec", file)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
if device != "cpu":
    import torch_npu
torch.manual_seed(0)
chip = torch.device(device)
model = module.BERT4Rec(500, 16, 32, nhead=4, num_layers=2, dropout=0.0, device=chip)
if weights.startswith("save:"):
    torch.save(model.state_dict(), weights[5:])
else:
    model.load_state_dict(torch.load(weights, map_location=device))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
draw, losses = torch.Generator().manual_seed(1), []
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
with open(result, "w") as file:
    json.dump(losses, file)
"""


def run(command: list[str]) -> str:
    """What a program printed; its end where it failed."""
    more = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **more})
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchrec", type=Path, required=True, help="a checkout")
    parser.add_argument("--peer", required=True, help="a Python that has torchrec")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(TRAIN)
        (folder / "before").mkdir()
        (folder / "before" / "bert4rec.py").write_bytes((options.torchrec / MODEL).read_bytes())
        joymigrate = [sys.executable, "-W", "ignore", "-m", "joymigrate"]
        run([*joymigrate, "rewrite", str(folder / "before"), "--to", "ascend", "--unsafe",
             "-o", str(folder / "after"), "-q"])  # fmt: skip
        losses = {}
        weights = str(folder / "weights.pt")
        for name, start, source, given, device in (
            ("TorchRec, CPU", [options.peer], "before", f"save:{weights}", "cpu"),
            ("migrated, CPU", [sys.executable], "after", weights, "cpu"),
            ("migrated, rehearsed",
             [*joymigrate, "rehearse", "--to", "ascend", "--", "python"], "after", weights, "npu"),
        ):  # fmt: skip
            result = folder / "losses.json"
            said = run([*start, str(folder / "train.py"), str(folder / source / "bert4rec.py"),
                        given, device, str(STEPS), str(result)])  # fmt: skip
            losses[name] = json.loads(result.read_text())
            print(f"{name}: {losses[name][0]:.6f} … {losses[name][-1]:.6f}")
            if device != "cpu":
                print(said)
    first = losses["TorchRec, CPU"]
    for name, found in losses.items():
        apart = max(abs(a - b) for a, b in zip(first, found, strict=True))
        print(f"{name}: largest difference of {STEPS} losses {apart:.1e} (<= 1e-5)")


if __name__ == "__main__":
    main()
