"""A worker that looks whether it has an accelerator; its launcher gave it the cards in this order."""
import os

os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0,1"

import torch
import torch_npu


def device():
    return torch.device("npu:0") if torch.npu.is_available() else torch.device("cpu")


model = torch.nn.Linear(1024, 1024).to(device())
x = torch.randn(64, 1024, device=device())
loss = model(x).square().mean()
loss.backward()
print("trained on", model.weight.device, "of", torch.npu.device_count(), "cards, loss", float(loss))
