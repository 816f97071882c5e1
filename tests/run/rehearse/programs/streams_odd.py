"""Odd but legal uses of streams for `--mode async`, written down before they were tried.

As in streams.py: two marked lines where a function races, none where it does not.
"""

import sys
import threading

import torch
import torch_npu  # noqa: F401

NPU = torch.device("npu:0")
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def pinned(count=1024):
    return torch.ones(count).pin_memory()


# ---- races


@check
def an_event_recorded_on_another_stream():
    one, other = torch.npu.Stream(), torch.npu.Stream()
    x = torch.ones(1024, device=NPU)
    torch.npu.synchronize()
    with torch.npu.stream(one):
        x.add_(1)  # first
    event = torch.npu.Event()
    event.record(other)
    event.wait(torch.npu.current_stream())
    x * 2  # second


@check
def a_wait_asked_for_before_the_work():
    side = torch.npu.Stream()
    x = torch.ones(1024, device=NPU)
    torch.npu.synchronize()
    torch.npu.current_stream().wait_stream(side)
    with torch.npu.stream(side):
        x.mul_(3)  # first
    x + 1  # second


@check
def memory_recorded_on_the_wrong_stream():
    side, other = torch.npu.Stream(), torch.npu.Stream()
    x = torch.ones(1 << 20, device=NPU)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2  # first
    x.record_stream(other)
    del x
    torch.zeros(1 << 20, device=NPU)  # second
    torch.npu.synchronize()
    del y


@check
def another_stream_was_synchronised():
    one, other = torch.npu.Stream(), torch.npu.Stream()
    buffer = pinned()
    x = torch.ones(1024, device=NPU)
    torch.npu.synchronize()
    with torch.npu.stream(one):
        buffer.copy_(x, non_blocking=True)  # first
    other.synchronize()
    buffer.sum()  # second


@check
def an_event_asked_once_and_not_waited_for():
    buffer = pinned()
    x = torch.ones(1024, device=NPU)
    torch.npu.synchronize()
    event = torch.npu.Event()
    event.record()
    buffer.copy_(x, non_blocking=True)  # first
    event.query()
    buffer.sum()  # second


@check
def a_prefetched_batch_used_without_waiting():
    side = torch.npu.Stream()
    host = pinned()
    with torch.npu.stream(side):
        batch = host.to(NPU, non_blocking=True)  # first
    batch * 2  # second
    torch.npu.synchronize()


@check
def an_event_used_again_for_later_work():
    side = torch.npu.Stream()
    event = torch.npu.Event()
    x = torch.ones(1024, device=NPU)
    torch.npu.synchronize()
    with torch.npu.stream(side):
        event.record()
        x.add_(1)  # first
    event.wait()
    x + 1  # second


@check
def overlapping_views_of_one_buffer():
    side = torch.npu.Stream()
    x = torch.zeros(1024, device=NPU)
    torch.npu.synchronize()
    with torch.npu.stream(side):
        x[:600].fill_(1)  # first
    x[500:].fill_(2)  # second


# ---- no races


@check
def an_event_on_the_stream_that_works():
    side = torch.npu.Stream()
    x = torch.ones(1024, device=NPU)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        x.add_(1)
        event = side.record_event()
    torch.npu.current_stream().wait_event(event)
    assert (x * 2).cpu()[0] == 4


@check
def an_event_asked_until_it_is_over():
    buffer = pinned()
    x = torch.full((1024,), 2.0, device=NPU)
    buffer.copy_(x, non_blocking=True)
    event = torch.npu.Event()
    event.record()
    while not event.query():
        pass
    assert buffer.sum() == 2048


@check
def a_chain_over_three_streams():
    streams = [torch.npu.Stream() for _ in range(3)]
    x = torch.ones(1024, device=NPU)
    before = torch.npu.current_stream()
    for stream in streams:
        stream.wait_stream(before)
        with torch.npu.stream(stream):
            x.add_(1)
        before = stream
    torch.npu.current_stream().wait_stream(before)
    assert x.cpu()[0] == 4


@check
def a_prefetcher_with_two_buffers():
    side = torch.npu.Stream()
    hosts = [pinned(), pinned()]
    events = [torch.npu.Event(), torch.npu.Event()]
    total = torch.zeros((), device=NPU)
    for step in range(5):
        host, event = hosts[step % 2], events[step % 2]
        event.synchronize()
        host.fill_(step)
        with torch.npu.stream(side):
            batch = host.to(NPU, non_blocking=True)
            event.record()
        torch.npu.current_stream().wait_stream(side)
        batch.record_stream(torch.npu.current_stream())
        total += batch.sum()
    assert total.item() == 10 * 1024


@check
def halves_of_one_buffer_on_two_streams():
    one, other = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(1024, device=NPU)
    for stream, part in ((one, x[:512]), (other, x[512:])):
        stream.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(stream):
            part.add_(1)
    torch.npu.synchronize()
    assert x.sum().item() == 1024


@check
def every_second_number_on_two_streams():
    side = torch.npu.Stream()
    x = torch.zeros(64, device=NPU)
    torch.npu.synchronize()
    with torch.npu.stream(side):
        x[::2].fill_(1)
    x[1::2].fill_(2)
    torch.npu.synchronize()


@check
def a_stream_waited_for_in_a_thread():
    buffer = pinned()
    x = torch.ones(1024, device=NPU)
    buffer.copy_(x, non_blocking=True)
    stream = torch.npu.current_stream()
    thread = threading.Thread(target=stream.synchronize)
    thread.start()
    thread.join()
    assert buffer.sum() == 1024


@check
def an_event_with_times():
    first, last = (torch.npu.Event(enable_timing=True) for _ in range(2))
    buffer = pinned()
    x = torch.ones(1024, device=NPU)
    first.record()
    buffer.copy_(x, non_blocking=True)
    last.record()
    last.synchronize()
    assert first.elapsed_time(last) >= 0
    assert buffer.sum() == 1024


@check
def an_empty_copy_and_a_copy_to_itself():
    side = torch.npu.Stream()
    x = torch.ones(8, device=NPU)
    with torch.npu.stream(side):
        torch.empty(0, device=NPU).copy_(torch.empty(0).pin_memory(), non_blocking=True)
    x.copy_(x)
    x[:0].add_(1)


@check
def a_saved_tensor_moved_by_a_hook():
    x = torch.ones(1024, device=NPU, requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x * 2).exp().sum()
    y.backward()
    assert x.grad.cpu()[0] > 0


def main():
    names = sys.argv[1:] or list(CHECKS)
    for name in names:
        CHECKS[name]()
        torch.npu.synchronize()
    print("done")


main()
