# After a transfer the pinned host buffers are to be given back to the system.
import torch
import torch_npu

buffer = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
on_device = buffer.to("npu", non_blocking=True)
torch.npu.synchronize()
del buffer
torch._C._host_emptyCache()
print(on_device.shape)
