import torch

SOURCE = """
import torch
def place():
    return torch.device("{kind}" if torch.{kind}.is_available() else "cpu")
"""
KIND = "".join(["cu", "da"])
names = {}
exec(SOURCE.format(kind=KIND), names)
device = names["place"]()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1).to(f"{KIND}:0")
assert next(model.parameters()).device.type in ("cpu", "cuda")
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 4).cuda()
    loss = model(x).pow(2).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print("loss", loss.item(), device.type != "cpu", getattr(x, "is_" + KIND))

import threading  # noqa: E402

BACKEND = "nc" + "cl"
CALLS = {
    "method": lambda: getattr(torch.ones(2), KIND)(),
    "typed": lambda: torch.ones(2).type(f"torch.{KIND}.HalfTensor"),
    "generator": lambda: torch.rand(2, device=KIND, generator=torch.Generator(KIND)),
    "layer": lambda: torch.nn.Linear(2, 2, device=KIND).weight,
    "autocast": lambda: autocast(),
    "scaler": lambda: torch.amp.GradScaler(KIND).scale(torch.ones(1).cuda()),
    "saved": lambda: saved(),
    "stream": lambda: torch.Stream(KIND),
    "module": lambda: torch.ones(2, device=f"{KIND}:{getattr(torch, KIND).current_device()}"),
    "thread": lambda: in_thread(lambda: torch.zeros(1, device=KIND)),
    "group": lambda: group(),
}


def autocast():
    with torch.autocast(KIND, dtype=torch.float16):
        made = torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()
    assert made.dtype is torch.float16
    return made


def saved():
    torch.save(torch.ones(2), "saved.pt")
    return torch.load("saved.pt", map_location=KIND)


def in_thread(call):
    made = []
    thread = threading.Thread(target=lambda: made.append(call()))
    thread.start()
    thread.join()
    return made[0]


def group():
    meet = {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}
    torch.distributed.init_process_group(BACKEND, **meet)
    made = torch.ones(1, device=KIND)
    torch.distributed.all_reduce(made)
    return made


for name, call in CALLS.items():
    print(name, call().device)
# Layers of torch's with a fast way of their own leave it where they see a mode.
print("slow" if torch.overrides.has_torch_function((torch.ones(1),)) else "fast")
