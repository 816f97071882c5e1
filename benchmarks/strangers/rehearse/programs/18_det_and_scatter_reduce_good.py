import torch
import torch_npu

r = torch.randn(16, 3, 3, device="npu")
det = (r[:, 0, 0] * (r[:, 1, 1] * r[:, 2, 2] - r[:, 1, 2] * r[:, 2, 1])
       - r[:, 0, 1] * (r[:, 1, 0] * r[:, 2, 2] - r[:, 1, 2] * r[:, 2, 0])
       + r[:, 0, 2] * (r[:, 1, 0] * r[:, 2, 1] - r[:, 1, 1] * r[:, 2, 0]))
residue = torch.arange(64, device="npu") // 4
member = (residue.unsqueeze(0) == torch.arange(16, device="npu").unsqueeze(-1)).float()
atoms = torch.randn(64, 3, device="npu")
centres = (member @ atoms) / member.sum(-1, keepdim=True)
print((det > 0).shape, centres.shape)
