"""A script whose device comes from options and f-strings, with checkpoints, written for CUDA."""

import argparse
import os
import tempfile

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
parser.add_argument("--gpu", type=int, default=0)
args = parser.parse_args()

if args.device == "cuda":
    where = f"{args.device}:{args.gpu}"
    fallback = "cuda:" + str(args.gpu)
else:
    where = fallback = "cpu"
if not torch.device(where).type == "cuda":
    raise SystemExit("this program wants the accelerator")
model = nn.Conv2d(3, 4, 3).to(torch.device(where))
images = torch.rand(2, 3, 8, 8, device=fallback)
with torch.cuda.device(args.gpu):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        loss = model(images).mean()
    torch.cuda.current_stream().wait_stream(stream)
loss.backward()
path = os.path.join(tempfile.mkdtemp(), "model.pt")
torch.save({"model": model.state_dict(), "rng": torch.cuda.get_rng_state()}, path)
state = torch.load(path, map_location=lambda storage, location: storage.cuda(args.gpu))
model.load_state_dict(state["model"])
name = str(model.weight.device).replace("cuda:", "card ")
assert name == f"card {args.gpu}", name
print(f"loss finite {bool(torch.isfinite(loss))} on {name} done")
