# A fine-tuned model served in float16: activations leave its range and the same token comes out forever.
import torch
import torch_npu

torch.manual_seed(0)
hidden = torch.full((1, 4096), 100.0, dtype=torch.float16, device="npu")
down = torch.ones(4096, 64, dtype=torch.float16, device="npu")
head = torch.randn(64, 32, dtype=torch.float16, device="npu")
residual = hidden @ down
normed = residual / residual.abs().mean(-1, keepdim=True)
token = (normed @ head).softmax(-1).argmax(-1)
print(token.item())
