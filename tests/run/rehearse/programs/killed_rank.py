"""Two ranks without a launcher; rank 1 is killed in the middle. Started without arguments."""

import os
import signal
import subprocess
import sys
import tempfile
import time


def rank(number):
    import torch
    import torch.distributed as dist

    torch.npu.set_device(number)
    dist.init_process_group("hccl", init_method=os.environ["STORE"], rank=number, world_size=2)
    x = torch.ones(4, device="npu")
    dist.all_reduce(x)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
    print("unreachable", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(int(sys.argv[1]))
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "STORE": f"file://{folder}/store"}
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(number)], env=environment, stderr=subprocess.PIPE, text=True)
            for number in range(2)
        ]
        ranks[1].wait()
        start = time.monotonic()
        _, said = ranks[0].communicate(timeout=60)
        print("seconds", round(time.monotonic() - start, 2))
        print("codes", ranks[0].returncode, ranks[1].returncode)
        print(said)
