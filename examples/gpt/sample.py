"""Ask a trained model: `python sample.py 17+25 3+99`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from data import CHARACTERS, decode, encode
from model import GPT, GPTConfig


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a trained model for sums.")
    parser.add_argument("sums", nargs="+", help="such as 17+25")
    parser.add_argument("--checkpoint", type=Path, default=Path("out/checkpoint.pt"))
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    state = torch.load(args.checkpoint, map_location=device, weights_only=True)["model"]
    layers = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    width = state["norm.weight"].numel()
    model = GPT(GPTConfig(vocab_size=len(CHARACTERS), layers=layers, width=width)).to(device)
    model.load_state_dict(state)
    model.eval()
    for text in args.sums:
        prompt = torch.tensor([encode(f"{text}=")], device=device)
        with torch.inference_mode():
            answer = decode(model.generate(prompt, 4)[0].tolist()).split("=")[1].split(";")[0]
        print(f"{text} = {answer[::-1]}")


if __name__ == "__main__":
    main()
