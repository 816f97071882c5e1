# A table that was saved from the chip is read back the safe way.
import tempfile

import torch
import torch_npu

with tempfile.TemporaryDirectory() as folder:
    path = folder + "/experts.pt"
    torch.save({"count": torch.ones(4, 8, device="npu")}, path)
    table = torch.load(path, weights_only=True)
print(table["count"].shape)
