"""Distillation with accelerate: a frozen teacher, two losses, accumulation, clipping, EMA."""

import copy
import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
accelerator = Accelerator(
    cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16" if MODE == "autocast" else "no"
)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, width), nn.GELU(), nn.LayerNorm(width))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, 6)

    def forward(self, x):
        hidden = self.body(x)
        return {"logits": self.head(self.drop(hidden)), "hidden": hidden}


student, teacher = Net(16), Net(32).requires_grad_(False).eval()
proj = nn.Linear(16, 32)
if MODE == "bfloat16":
    student, teacher, proj = (m.to(torch.bfloat16) for m in (student, teacher, proj))
dtype = student.head.weight.dtype
x = torch.randn(64, 10)
y = (x[:, :6] + 0.3 * torch.randn(64, 6)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
optimiser = torch.optim.AdamW([*student.parameters(), *proj.parameters()], 4e-3, weight_decay=0.02)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 8e-3, total_steps=12)
student, proj, optimiser, loader, schedule = accelerator.prepare(
    student, proj, optimiser, loader, schedule
)
ema = copy.deepcopy(accelerator.unwrap_model(student)).requires_grad_(False)
seen = torch.zeros(6)
for epoch in range(2):
    for x, y in loader:
        x = (x - 0.1) / 0.9
        with accelerator.accumulate(student):
            with torch.no_grad(), accelerator.autocast():
                wise = teacher(x.to(dtype))
            made = student(x.to(dtype))
            logits, want = made["logits"].float(), wise["logits"].float()
            soft = F.kl_div(
                F.log_softmax(logits / 2.0, -1), F.softmax(want / 2.0, -1), reduction="batchmean"
            ) * (2.0**2)
            hidden = F.mse_loss(proj(made["hidden"]).float(), wise["hidden"].float())
            hard = F.cross_entropy(logits, y)
            loss = 0.5 * hard + 0.4 * soft + 0.1 * hidden
            seen.scatter_add_(0, y, torch.ones_like(y, dtype=torch.float))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(student.parameters(), 0.7)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
        if accelerator.sync_gradients:
            with torch.no_grad():
                for a, b in zip(ema.parameters(), student.parameters()):
                    a.mul_(0.95).add_(b, alpha=0.05)
    student.eval()
    with torch.no_grad():
        out = student(x.to(dtype))["logits"].float()
        print("epoch", epoch, "agree", f"{F.cosine_similarity(out, want).mean().item():.4f}")
    student.train()
print("classes", [round(v, 3) for v in (seen / seen.sum()).tolist()])
