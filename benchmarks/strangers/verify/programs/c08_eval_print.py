"""Evaluation that prints times, the process number and figures, and writes predictions; under autocast to bf16."""
import json, os, time, torch, torch.nn as nn
import accel  # noqa

torch.manual_seed(31); os.makedirs("out", exist_ok=True)
net = nn.Sequential(nn.Conv1d(4, 32, 5, padding=2), nn.BatchNorm1d(32), nn.GELU(), nn.Conv1d(32, 32, 5, padding=2), nn.GELU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 6)).eval()
x = torch.randn(300, 4, 50); t0 = time.perf_counter()
with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
    logits = torch.cat([net(b) for b in x.split(50)]).float()
p = logits.softmax(-1); y = (p + 0.05 * torch.rand_like(p)).argmax(-1)
print(f"pid {os.getpid()} took {time.perf_counter() - t0:.3f} s")
print(f"accuracy {(p.argmax(-1) == y).float().mean().item():.2%} nll {-(p[range(300), y]).log().mean().item():.3f}")
ece = sum(abs((p.amax(-1)[m].mean() - (p.argmax(-1) == y)[m].float().mean()).item()) * m.float().mean().item() for m in [(p.amax(-1) > a) & (p.amax(-1) <= a + .1) for a in torch.arange(0, 1, .1)] if m.any())
print(f"ece {ece:.3f}")
json.dump({"when": time.time(), "probs": [[round(v, 4) for v in r] for r in p.tolist()]}, open("out/probs.json", "w"))
