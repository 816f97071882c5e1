# Rotations are checked by their determinant; atoms are averaged per residue.
import torch
import torch_npu

rotations = torch.randn(16, 3, 3, device="npu")
proper = torch.linalg.det(rotations) > 0
residue = (torch.arange(64, device="npu") // 4).unsqueeze(-1).expand(-1, 3)
atoms = torch.randn(64, 3, device="npu")
centres = torch.zeros(16, 3, device="npu").scatter_reduce(0, residue, atoms, "mean", include_self=False)
print(proper.shape, centres.shape)
