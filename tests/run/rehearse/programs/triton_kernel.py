"""Triton kernels on the device: a sum in two dtypes, tuned, and one that reduces bfloat16."""

import torch
import torch_npu  # noqa: F401
import triton
import triton.language as tl
import triton.language.extra.cann.extension as extension


@triton.autotune(configs=[triton.Config({"BLOCK": n}) for n in (32, 64)], key=["size"])
@triton.jit
def scaled_sum(x, y, out, size, factor, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.load(x + places, mask=inside) * factor + tl.load(y + places, mask=inside)
    tl.store(out + places, total, mask=inside)


@triton.jit
def fused(x, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    value = tl.load(x + places)
    tl.store(out + places, tl.fma(value, value, value) / (value * value + 1.0))


@triton.jit
def summed(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, BLOCK)), 0))


@triton.jit
def halves(x, out, BLOCK: tl.constexpr):
    row = tl.load(x + tl.arange(0, BLOCK))
    low = extension.extract_slice(row, (0,), (BLOCK // 2,), (1,))
    swapped = extension.insert_slice(row, low, (BLOCK // 2,), (BLOCK // 2,), (1,))
    tl.store(out + tl.arange(0, BLOCK), swapped)


for dtype in (torch.float32, torch.bfloat16):
    x, y = (torch.randn(100).to(dtype).npu() for _ in range(2))
    out = torch.empty_like(x)
    scaled_sum[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, out, 100, 3.0)
    wanted = (x.cpu() * 3.0) + y.cpu()
    print(dtype, torch.equal(out.cpu(), wanted), float((out.cpu() - wanted).abs().max()))
out = torch.empty(100, device="npu")
scaled_sum.fn[(4,)](x.float(), y.float(), out, 100, 3.0, BLOCK=25)
print(torch.allclose(out.cpu(), x.cpu().float() * 3 + y.cpu().float()))
out = torch.empty(8, device="npu")
halves[(1,)](torch.arange(8.0).npu(), out, 8)
print(out.cpu().tolist())
summed[(1,)](torch.randn(8).npu(), out, 8)
try:
    summed[(1,)](torch.randn(8).bfloat16().npu(), out, 8)
except Exception as error:
    print(error)
row = torch.randn(16).bfloat16()
out = torch.empty_like(row).npu()
fused.warmup(row.npu(), out, 16, grid=(1,))  # computes nothing, and is no launch
fused[(1,)](row.npu(), out, 16, an_option=2)
above = (row.float() * row.float() + row.float()).bfloat16()
print(torch.equal(out.cpu(), above / (row * row + 1.0)))
# What `triton.testing.do_bench` asks the driver.
driver = triton.runtime.driver.active
driver.clear_cache(driver.get_empty_cache_for_benchmark())
