"""A program for `accelerate launch`: each process trains on a card of its own."""

import torch
from accelerate import Accelerator

torch.manual_seed(0)
accelerator = Accelerator()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.arange(32.0).reshape(8, 4) / 32
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (batch,) in loader:
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    total = accelerator.gather(loss.detach().reshape(1)).sum().item()
    where = f"{accelerator.process_index} of {accelerator.num_processes} on {batch.device}"
    print(f"{where} loss {total:.4f}", flush=True)
