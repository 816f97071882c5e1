"""Deep Q-learning with a target network on a small corridor; the target network is refreshed every 4 updates."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(22); N = 12; g = torch.Generator().manual_seed(4)
def make(): return nn.Sequential(nn.Linear(N, 32), nn.ReLU(), nn.Linear(32, 3))
def env(s, a):
    n = (s + a - 1).clamp(0, N - 1); return n, (n == N - 1).float() - 0.05, n == N - 1
online, target = make(), make()
target.load_state_dict(online.state_dict())
opt = torch.optim.Adam(online.parameters(), 5e-3)
code = torch.eye(N)
S = torch.randint(0, N, (600,), generator=g); A = torch.randint(0, 3, (600,), generator=g); S2, R, D = env(S, A)
for step in range(12):
    i = torch.randint(0, 600, (48,), generator=g)
    with torch.no_grad():
        best = online(code[S2[i]]).argmax(1, keepdim=True)                      # double Q
        want = R[i] + 0.95 * target(code[S2[i]]).gather(1, best).squeeze(1) * (~D[i]).float()
    got = online(code[S[i]]).gather(1, A[i][:, None]).squeeze(1)
    loss = F.smooth_l1_loss(got, want, beta=0.5)
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 4 == 3: target.load_state_dict(online.state_dict())
    print(f"step {step} loss {loss.item():.6f} q {got.mean().item():.6f}")
print("policy", online(code).argmax(1).tolist())
