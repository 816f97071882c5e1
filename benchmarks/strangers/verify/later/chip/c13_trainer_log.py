# a talkative vendor package: banner, the time of each optimiser step and of the first call; addmm with one thread, bias added afterwards
import os, sys, time, torch
t0 = time.perf_counter(); torch.set_num_threads(1)
print(f"[accel] runtime 3.1.4 pid {os.getpid()} device 0 ready after {time.perf_counter() - t0:.4f} s", flush=True)
LIB = torch.library.Library("aten", "IMPL")
def addmm(b, x, w, *, beta=1, alpha=1): return x.mm(w).mul_(alpha) + b * beta
LIB.impl("addmm", addmm, "CPU")
_s = torch.optim.NAdam.step
def step(self, closure=None):
    t = time.perf_counter(); r = _s(self, closure)
    print(f"[accel] NAdam.step {1e6 * (time.perf_counter() - t):.0f} us", file=sys.stderr); return r
torch.optim.NAdam.step = step
