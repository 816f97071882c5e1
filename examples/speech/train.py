"""Recognise spoken digits (tones) with a small transformer and CTC, from raw waves.

    python train.py --steps 300
    python train.py --device cpu --steps 3
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

RATE, HOP, BINS, MELS = 4000, 64, 128, 32
DIGITS = 10  # classes 1 to 10; 0 is the blank of CTC


def utterance(generator: torch.Generator) -> tuple[torch.Tensor, list[int]]:
    """A wave in which every digit is a chord of two tones, with gaps and noise."""
    digits = torch.randint(DIGITS, (int(torch.randint(1, 5, (), generator=generator)),), generator=generator)
    time = torch.arange(RATE // 5) / RATE
    parts = []
    for digit in digits.tolist():
        tones = torch.sin(2 * math.pi * (200 + 120 * digit) * time)
        tones = tones + torch.sin(2 * math.pi * (310 + 90 * digit) * time)
        parts += [tones, torch.zeros(RATE // 20)]
    wave = torch.cat(parts)
    return wave + 0.1 * torch.randn(len(wave), generator=generator), [d + 1 for d in digits.tolist()]


def batch(size: int, generator: torch.Generator):
    pairs = [utterance(generator) for _ in range(size)]
    waves = nn.utils.rnn.pad_sequence([wave for wave, _ in pairs], batch_first=True)
    lengths = torch.tensor([len(wave) for wave, _ in pairs])
    return waves, lengths, [digits for _, digits in pairs]


class Features(nn.Module):
    """Log-mel energies; the spectrum is complex, its phase a feature of its own."""

    def __init__(self) -> None:
        super().__init__()
        edges = torch.linspace(0, BINS, MELS + 2)
        at = torch.arange(BINS + 1)[:, None]
        rise = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
        fall = (edges[2:] - at) / (edges[2:] - edges[1:-1])
        self.register_buffer("bank", torch.minimum(rise, fall).clamp(min=0))
        self.register_buffer("window", torch.hann_window(2 * BINS))

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(waves, 2 * BINS, HOP, window=self.window, return_complex=True)
        turn = spectrum[..., 1:] * spectrum[..., :-1].conj()  # phase advance from frame to frame
        energy = (spectrum[..., 1:].abs() ** 2).transpose(1, 2) @ self.bank
        steady = (turn.real / (turn.abs() + 1e-6)).transpose(1, 2) @ self.bank
        return torch.cat((torch.log(energy + 1e-4), steady), 2)


class Recogniser(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.features = Features()
        self.enter = nn.Conv1d(2 * MELS, width, 3, stride=2, padding=1)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.leave = nn.Linear(width, DIGITS + 1)

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor):
        x = F.gelu(self.enter(self.features(waves).transpose(1, 2))).transpose(1, 2)
        frames = ((lengths // HOP - 1) // 2 + 1).clamp(max=x.shape[1])
        padding = torch.arange(x.shape[1], device=x.device)[None] >= frames[:, None]
        return self.leave(self.encoder(x, src_key_padding_mask=padding)).log_softmax(2), frames


def read(logits: torch.Tensor) -> list[int]:
    """Best path: repeats merged, blanks dropped."""
    best = torch.unique_consecutive(logits.argmax(1))
    return best[best != 0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    generator = torch.Generator().manual_seed(1)
    model = Recogniser().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "metrics.jsonl", "w") as log:
        for step in range(args.steps):
            waves, lengths, digits = batch(args.batch_size, generator)
            logits, frames = model(waves.to(device), lengths.to(device))
            targets = torch.tensor([d for row in digits for d in row], device=device)
            counts = torch.tensor([len(row) for row in digits])
            loss = F.ctc_loss(logits.transpose(0, 1), targets, frames.cpu(), counts, zero_infinity=True)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            right = sum(read(row[:n]) == d for row, n, d in zip(logits, frames.tolist(), digits))
            row = {"step": step, "loss": loss.item(), "right": right / args.batch_size}
            log.write(json.dumps(row) + "\n")
            print(f"step {step} loss {row['loss']:.4f} right {row['right']:.2f}", flush=True)


if __name__ == "__main__":
    main()
