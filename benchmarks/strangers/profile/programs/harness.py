"""loop(step): runs a step function 12 times; with TRACE=FILE the last 4 of 8 under torch.profiler (CPU), to FILE (Chrome trace)."""
import os, torch

def loop(step, n=12):
    path = os.environ.get("TRACE")
    if not path:
        for i in range(n): step(i)
        return
    from torch.profiler import profile, schedule, ProfilerActivity
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=2, active=3), record_shapes=True, with_stack=True, with_modules=True) as p:
        for i in range(6): step(i); p.step()
    p.export_chrome_trace(path)
