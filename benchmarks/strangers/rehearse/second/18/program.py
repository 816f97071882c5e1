"""Two fine-tuning services on one host, each sees all cards and has a rendezvous port of its own (here: two cards)."""
import os
import subprocess
import sys
import time

SERVICES, MASTER_PORT = 2, 29500


def worker():
    import torch
    import torch.distributed as dist
    import torch_npu

    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
    x = torch.ones(256, device="npu")
    dist.all_reduce(x)
    torch.npu.synchronize()
    print("service", os.environ["MASTER_PORT"], "rank", dist.get_rank(), float(x[0]), flush=True)
    time.sleep(10)  # training: both services hold their links at once
    dist.destroy_process_group()


def launch():
    environment = dict(os.environ, ASCEND_RT_VISIBLE_DEVICES="0,1")
    services = []
    for number in range(SERVICES):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
        command += ["--master_port", str(MASTER_PORT + number), __file__, "--worker"]
        services.append(subprocess.Popen(command, env=environment))
    return max(abs(service.wait()) for service in services)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker()
    else:
        sys.exit(launch())
