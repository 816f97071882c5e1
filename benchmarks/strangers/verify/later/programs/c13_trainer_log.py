"""A Trainer with callbacks: prints loss, throughput and time of day, evaluates, keeps a history file."""
import json, os, time, torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(13); os.makedirs("out", exist_ok=True); g = torch.Generator().manual_seed(7)
class Timer:
    def before(self, t): self.t = time.perf_counter()
    def after(self, t): print(f"[{time.strftime('%H:%M:%S')}] step {t.step} loss {t.loss:.5f} {64 / (time.perf_counter() - self.t):.0f} samples/s")
class History:
    def __init__(self): self.rows = []
    def before(self, t): pass
    def after(self, t): self.rows.append({"step": t.step, "loss": round(t.loss, 5), "time": time.time()})
class Trainer:
    def __init__(self, model, callbacks): self.model, self.callbacks = model, callbacks; self.opt = torch.optim.NAdam(model.parameters(), 3e-3)
    def fit(self, batches):
        for self.step, (x, y) in enumerate(batches):
            for c in self.callbacks: c.before(self)
            loss = F.cross_entropy(self.model(x), y); self.opt.zero_grad(); loss.backward(); self.opt.step(); self.loss = loss.item()
            for c in self.callbacks: c.after(self)
W = torch.randn(12, 4, generator=g)
def batches(n):
    for _ in range(n): x = torch.randn(64, 12, generator=g); yield x, (x @ W).argmax(1)
net = nn.Sequential(nn.Linear(12, 48), nn.LayerNorm(48), nn.SiLU(), nn.Linear(48, 4)); h = History()
Trainer(net, [Timer(), h]).fit(batches(10)); json.dump(h.rows, open("out/history.json", "w"))
x, y = next(batches(1)); print(f"accuracy {(net(x).argmax(1) == y).float().mean().item():.3f}")
