"""A small image generator on an inference card: the first picture of each size takes minutes."""
import time

import torch
import torch_npu

torch.npu.set_device(0)


class Denoiser(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first = torch.nn.Conv2d(4, width, 3, padding=1)
        self.norm = torch.nn.GroupNorm(8, width)
        self.middle = torch.nn.Conv2d(width, width, 3, padding=1)
        self.last = torch.nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x):
        y = torch.nn.functional.silu(self.norm(self.first(x)))
        return self.last(torch.nn.functional.silu(self.middle(y)))


def picture(model, height, width, steps=4):
    x = torch.randn(1, 4, height, width, dtype=torch.float16).npu()
    for _ in range(steps):
        x = x - 0.1 * model(x)
    torch.npu.synchronize()
    return x


with torch.no_grad():
    model = Denoiser().half().npu()
    for height, width in [(32, 32), (48, 32), (32, 48), (64, 64)]:
        start = time.perf_counter()
        picture(model, height, width)
        print(f"{height} x {width}: {time.perf_counter() - start:.1f} s")
