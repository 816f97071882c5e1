"""Programs for `--mode async`: functions that race, and functions that do not.

In a function that races two lines are marked, `# first` and `# second`: these are to be reported,
and no others. Run without arguments; names of functions run those only.
"""

import sys
import threading

import torch
import torch_npu  # noqa: F401
from torch import nn

NPU = torch.device("npu:0")
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def pinned(count=1024):
    return torch.ones(count).pin_memory()


# ---- races


@check
def splits_read_on_the_host_too_early():  # vllm-project/vllm-ascend 3005
    counts = torch.tensor([3, 5, 8], device=NPU)
    splits = (counts * 2).to("cpu", non_blocking=True)  # first
    splits.tolist()  # second


@check
def a_numpy_view_read_too_early():  # vllm-project/vllm-ascend 8764
    buffer = torch.zeros(64, dtype=torch.int64).pin_memory()
    view = buffer.numpy()
    accepted = torch.arange(64, device=NPU)
    buffer[:8].copy_(accepted[:8] + 1, non_blocking=True)  # first
    accepted * 2
    view[:8].sum()  # second


@check
def a_pinned_buffer_filled_again_too_early():
    buffer = pinned()
    x = buffer.to(NPU, non_blocking=True)  # first
    buffer.fill_(2)  # second
    x + 1


@check
def a_numpy_view_written_too_early():
    buffer = pinned()
    view = buffer.numpy()
    x = torch.empty(1024, device=NPU)
    x.copy_(buffer, non_blocking=True)  # first
    x + 1
    view[3] = 7.0  # second


@check
def a_copy_on_a_side_stream():
    buffer = pinned()
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        x = buffer.to(NPU, non_blocking=True)  # first
    x + 1  # second
    side.synchronize()


@check
def work_on_a_side_stream_read_too_early():
    x = torch.ones(1024, device=NPU)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 3  # first
    y + 1  # second
    torch.npu.synchronize()


@check
def a_side_stream_that_does_not_wait():
    x = torch.ones(1024, device=NPU) * 2  # first
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        y = x * 3  # second
    torch.npu.synchronize()
    return y


@check
def a_stream_that_waits_for_itself():  # the order of two lines, vllm-project/vllm-ascend 9656
    x = torch.ones(1024, device=NPU) * 2  # first
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        side.wait_stream(torch.npu.current_stream())
        y = x * 3  # second
    torch.npu.synchronize()
    return y


@check
def an_event_recorded_too_early():
    x = torch.ones(1024, device=NPU)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    event = torch.npu.Event()
    with torch.npu.stream(side):
        event.record()
        y = x * 3  # first
    torch.npu.current_stream().wait_event(event)
    y + 1  # second
    torch.npu.synchronize()


@check
def overwritten_while_a_side_stream_reads():
    x = torch.ones(1024, device=NPU)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 3  # first
    x.fill_(0)  # second
    torch.npu.synchronize()
    return y


@check
def the_result_of_a_side_stream_copied_to_the_host():
    x = torch.ones(1024, device=NPU)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 3  # first
    y.cpu()  # second
    torch.npu.synchronize()


@check
def the_result_of_a_side_stream_as_a_number():
    x = torch.ones(1, device=NPU)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 3  # first
    y.item()  # second
    torch.npu.synchronize()


@check
def freed_while_a_side_stream_reads():  # the kind of vllm-project/vllm-ascend 13398
    x = torch.ones(1 << 16, device=NPU)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 3  # first
    del x
    z = torch.zeros(1 << 16, device=NPU)  # second
    torch.npu.synchronize()
    return y, z


@check
def a_slice_that_another_stream_writes():
    x = torch.zeros(8, 512, device=NPU)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        x[2:5].fill_(1)  # first
    x[4].sum()  # second
    torch.npu.synchronize()


# ---- no races


@check
def the_host_waits_in_every_way():
    buffer = torch.zeros(1024).pin_memory()
    view = buffer.numpy()
    x = torch.ones(1024, device=NPU)
    event = torch.npu.Event()
    for wait in (
        torch.npu.synchronize,
        lambda: torch.npu.current_stream().synchronize(),
        lambda: (event.record(), event.synchronize()),
        lambda: (event.record(), [None for _ in iter(event.query, True)]),
        lambda: x.sum().item(),
        lambda: x.cpu(),
        lambda: x.nonzero(),
        lambda: x[x > 0],
    ):
        x.add_(1)
        buffer.copy_(x, non_blocking=True)
        wait()
        assert view[0] == x[0].item() == view[-1]
        buffer.fill_(5)
        x.copy_(buffer, non_blocking=True)
        wait()
        view[:] = 1
        assert x[7].item() == 5


@check
def copies_that_are_not_pinned():
    host = torch.ones(1024)
    x = host.to(NPU, non_blocking=True)
    host.fill_(2)
    assert x.sum().item() == 1024
    other = torch.empty(1024)
    other.copy_(x, non_blocking=True)
    assert other.sum() == 1024


@check
def a_side_stream_with_events_both_ways():
    x = torch.ones(1024, device=NPU)
    side, main = torch.npu.Stream(), torch.npu.current_stream()
    for _ in range(3):
        side.wait_stream(main)
        with torch.npu.stream(side):
            y = x * 3
            y.record_stream(main)
        main.wait_stream(side)
        x.add_(y)
    assert x[0].item() == 64


@check
def buffers_that_take_turns():
    buffers = [torch.zeros(256).pin_memory() for _ in range(2)]
    events = [torch.npu.Event() for _ in range(2)]
    x = torch.zeros(256, device=NPU)
    for step in range(6):
        turn = step % 2
        events[turn].synchronize()
        buffers[turn].fill_(float(step))
        x.copy_(buffers[turn], non_blocking=True)
        events[turn].record()
        x.mul_(2)
    assert x[0].item() == 10


@check
def parts_of_a_buffer_that_do_not_meet():
    buffer = torch.zeros(4096).pin_memory()
    x = torch.ones(4096, device=NPU)
    buffer[:1000].copy_(x[:1000], non_blocking=True)
    buffer[1000:].fill_(3)
    assert buffer[2000].item() == 3
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        x[:2048].mul_(2)
    x[2048:].mul_(3)
    table = x.view(64, 64)
    torch.npu.synchronize()
    with torch.npu.stream(side):
        table[:, :32].add_(1)
    table[:, 32:].sub_(1)
    torch.npu.synchronize()


@check
def only_the_form_is_looked_at():
    x = torch.ones(1024, device=NPU)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        x.mul_(2)
    torch.zeros_like(x), x.new_empty(3), x.new_zeros(3), x.view(32, 32), x[3:].shape
    torch.npu.synchronize()


@check
def freed_after_record_stream():
    side = torch.npu.Stream()
    for _ in range(12):
        x = torch.ones(1 << 14, device=NPU)
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            x * 3
        x.record_stream(side)
        del x
        torch.zeros(1 << 14, device=NPU)


@check
def freed_after_the_stream_was_waited_for():
    side = torch.npu.Stream()
    for _ in range(12):
        x = torch.ones(1 << 14, device=NPU)
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            x * 3
        torch.npu.current_stream().wait_stream(side)
        del x
        torch.zeros(1 << 14, device=NPU)


@check
def a_loader_with_pinned_batches():
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True, num_workers=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(NPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        for x, y in loader:
            x, y = x.to(NPU, non_blocking=True), y.to(NPU, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
    assert torch.stack(losses).isfinite().all().item()


@check
def the_next_batch_on_a_side_stream():
    batches = [torch.full((256,), float(i)).pin_memory() for i in range(6)]
    side, main = torch.npu.Stream(), torch.npu.current_stream()
    total = torch.zeros((), device=NPU)

    def load(i):
        with torch.npu.stream(side):
            return batches[i].to(NPU, non_blocking=True)

    coming = load(0)
    for i in range(len(batches)):
        main.wait_stream(side)
        x = coming
        x.record_stream(main)
        if i + 1 < len(batches):
            coming = load(i + 1)
        total += x.sum()
    assert total.item() == 256 * 15


@check
def backward_of_a_forward_on_a_side_stream():
    side = torch.npu.Stream()
    weight = torch.randn(16, 16, device=NPU, requires_grad=True)
    x = torch.randn(4, 16, device=NPU)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = (x @ weight).relu()
    torch.npu.current_stream().wait_stream(side)
    (y @ weight).sum().backward()
    assert weight.grad.isfinite().all().item()


@check
def gradients_kept_in_pinned_memory():
    weight = torch.randn(64, 64, device=NPU, requires_grad=True)
    kept = torch.empty(64, 64).pin_memory()
    (weight * 2).sum().backward()
    kept.copy_(weight.grad, non_blocking=True)
    done = torch.npu.Event()
    done.record()
    weight.grad = None
    done.synchronize()
    assert kept.sum() == 2 * 64 * 64


@check
def two_threads_with_streams_of_their_own():
    results = []

    def work(number):
        stream = torch.npu.Stream()
        with torch.npu.stream(stream):
            x = torch.full((512,), float(number), device=NPU)
            for _ in range(20):
                x = x * 1.5 + 1
        stream.synchronize()
        results.append(x.sum().item())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2


@check
def two_devices():
    x = torch.ones(256, device="npu:0")
    y = x.to("npu:1")
    with torch.npu.device(1):
        y.mul_(2)
    torch.npu.synchronize("npu:1")
    assert y.to("npu:0").sum().item() == 512


@check
def odd_tensors():
    empty = torch.empty(0, device=NPU)
    wide = torch.ones(1, device=NPU).expand(1000)
    complex_ = torch.ones(4, dtype=torch.complex64).to(NPU)
    (empty + 1), wide.sum().item(), (complex_ + 1).cpu()
    half = torch.ones(64).pin_memory().to(NPU, torch.float16, non_blocking=True)
    back = half.to("cpu", torch.float32, non_blocking=True)
    torch.npu.synchronize()
    assert back.sum() == 64


if __name__ == "__main__":
    for name in sys.argv[1:] or CHECKS:
        CHECKS[name]()
        torch.npu.synchronize()
    print("done")
