import gc

import torch
import torch_npu

buffer = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
on_device = buffer.to("npu", non_blocking=True)
torch.npu.synchronize()
del buffer
gc.collect()
print(on_device.shape)
