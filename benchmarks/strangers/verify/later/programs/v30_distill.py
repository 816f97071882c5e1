"""Knowledge distillation: a frozen teacher's soft labels and the true labels with label smoothing train a small student."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(30); K = 6; g = torch.Generator().manual_seed(11)
teacher = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, K)).eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, K))
opt = torch.optim.Adam(student.parameters(), 5e-3); T = 2.0
for step in range(10):
    x = torch.randn(64, 12, generator=g) * 2
    with torch.no_grad(): soft = teacher(x)
    y = soft.argmax(1); out = student(x)
    kd = F.kl_div(F.log_softmax(out / T, -1), F.log_softmax(soft / T, -1), reduction="batchmean", log_target=True) * T * T
    hard = F.cross_entropy(out, y, label_smoothing=0.2)
    loss = 0.7 * kd + 0.3 * hard
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.6f} kd {kd.item():.6f} hard {hard.item():.6f}")
