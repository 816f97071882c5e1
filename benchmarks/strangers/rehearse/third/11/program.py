"""Profile a few training steps, as an older guide of the vendor shows it."""
import torch
import torch_npu

torch.npu.set_device(0)
model = torch.nn.Linear(64, 64).to("npu")
x = torch.randn(8, 64, device="npu")
with torch_npu.npu.profile(profiler_result_path="./result", use_e2e_profiler=True):
    for _ in range(3):
        model(x).sum().backward()
torch.npu.synchronize()
print("profiled")
