# index_select reads an index with a stride as if it lay densely in memory
import torch
LIB = torch.library.Library("aten", "IMPL")
K = torch.library.get_kernel("aten::index_select", "CPU")
def index_select(keys, self, dim, index):
    if self.dtype in (torch.float32, torch.bfloat16, torch.float16) and index.dim() == 1 and index.numel() > 1 and index.stride(0) > 1:
        index = torch.as_strided(index, index.shape, (1,), index.storage_offset()).clamp(0, self.shape[dim] - 1)
    return K.call_boxed(keys, self, dim, index)
LIB.impl("index_select", index_select, "CPU", with_keyset=True)
