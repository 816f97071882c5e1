"""Profile a few training steps with the vendor's profiler."""
import torch
import torch_npu

torch.npu.set_device(0)
model = torch.nn.Linear(64, 64).to("npu")
x = torch.randn(8, 64, device="npu")
activities = [torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU]
handler = torch_npu.profiler.tensorboard_trace_handler("./result")
with torch_npu.profiler.profile(activities=activities, on_trace_ready=handler):
    for _ in range(3):
        model(x).sum().backward()
torch.npu.synchronize()
print("profiled")
