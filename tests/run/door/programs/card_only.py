"""What a program that knows only CUDA asks of it: one line for each answer."""

import torch
from torch import nn

assert torch.cuda.is_available()


def refused(call):
    try:
        call()
    except (RuntimeError, TypeError) as error:
        return str(error)
    return "taken"


host, card = torch.ones(2), torch.ones(2).cuda()
print("mixed:", refused(lambda: card + host))
print("numpy:", refused(card.numpy))
print("ordinal:", refused(lambda: host.to("cuda:7")))
print("graph:", refused(torch.cuda.CUDAGraph))
print("scalar:", refused(lambda: card * torch.tensor(2.0)))
print("places:", card.device, card.is_cuda, card.get_device(), card.cpu().device, host.is_cuda)
print("copies:", host.cuda() is host, card.cuda() is card, card.to("cuda:1").device)
print("type:", card.type(), isinstance(card, torch.cuda.FloatTensor), card.half().type())
print("host types:", card.type(torch.LongTensor).device, host.type(torch.LongTensor).device)
print("typed:", torch.cuda.LongTensor([1, 2]).device, card.type(torch.cuda.DoubleTensor).type())
with torch.device("cuda"):
    print("context:", torch.zeros(1).device, nn.Linear(1, 1).weight.device)
with torch.cuda.device(1):
    print("current:", torch.cuda.current_device(), torch.ones(1, device="cuda").device)
print("name:", torch.cuda.get_device_name(0), torch.cuda.device_count())
print("capability:", torch.cuda.get_device_capability(), torch.cuda.get_device_properties(0).major)
print("accelerator:", torch.accelerator.current_accelerator(), torch.accelerator.device_count())
held = torch.cuda.memory_allocated()
big = torch.zeros(1 << 20, device="cuda")
print("memory:", torch.cuda.memory_allocated() - held, torch.cuda.max_memory_allocated() >= 1 << 22)
del big
print("freed:", torch.cuda.memory_allocated() == held)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
with torch.cuda.stream(torch.cuda.Stream()):
    card.mul_(1)
end.record()
torch.cuda.synchronize()
print("event:", start.elapsed_time(end) >= 0)
with torch.autocast("cuda"):
    low = nn.functional.linear(torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda"))
    print("autocast:", low.dtype, torch.softmax(low, -1).dtype, low.sum().dtype)
    print("asked:", torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))
    cell = nn.LSTM(4, 4, device="cuda")(torch.ones(1, 1, 4, device="cuda"))[0]
    print("recurrent:", cell.dtype, cell.device)
tall = torch.full((1, 4096), 0.1, device="cuda").half()
print("product:", (tall @ tall.t()).item() == (tall.float() @ tall.float().t()).half().item())
with torch.autocast("cpu", dtype=torch.bfloat16):
    print("its own:", torch.softmax(low.bfloat16(), -1).dtype)
torch.save(card, "card.pt")
print("file:", torch.load("card.pt").device, torch.load("card.pt", map_location="cpu").device)
numbered = nn.Linear(1, 1).to(1)
print("numbers:", numbered.weight.device, torch.device(1), torch.device("cuda", 1))
print("beyond:", refused(lambda: nn.Linear(1, 1).to(2)))
torch.set_default_device("cuda")
print("default:", torch.zeros(1).device, torch.get_default_device())
