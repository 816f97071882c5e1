"""Train a small model with DeepSpeed on an Ascend NPU."""
import deepspeed
import torch
import torch_npu  # noqa: F401

model = torch.nn.Linear(64, 64)
config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(3):
    loss = engine(torch.randn(4, 64, device=engine.device)).square().mean()
    engine.backward(loss)
    engine.step()
