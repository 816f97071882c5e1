"""Checks of the device itself; run inside a rehearsal: pytest device_checks.py."""

import copy
import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_npu
from torch import nn

NPU = torch.device("npu:0")


def same(ours, theirs, tolerance=1e-6):
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=tolerance, atol=tolerance)


def test_the_package_is_the_vendors_and_tensors_live_on_its_device():
    assert Path(torch_npu.__file__).with_name("lib").joinpath("libtorch_npu.so").is_file()
    x = torch.ones(3).npu()
    assert x.device.type == "npu"
    assert x.is_npu
    assert not x.is_cpu
    assert type(x) is torch.Tensor
    assert torch.npu.get_device_name(0) == "Ascend910B3"
    assert torch._C._get_privateuse1_backend_name() == "npu"


def test_the_vendors_kernels_are_registered_and_ours_lie_over_them():
    table = torch._C._dispatch_dump_table("aten::mm")
    assert "PrivateUse1" in table
    assert "libtorch_npu" in table or "torch_npu" in table or "python" in table.lower()
    registrations = torch._C._dispatch_get_registrations_for_dispatch_key
    assert len(registrations("PrivateUse1")) > 1900
    assert len(registrations("AutogradPrivateUse1")) > 100
    assert len(registrations("AutocastPrivateUse1")) > 90
    # Kernels that need no chip are still the vendor's own.
    assert "torch_npu" in line_of("aten::empty_strided")
    assert "python" in line_of("aten::mm").lower() or "joymigrate" in line_of("aten::mm")


def line_of(name):
    lines = torch._C._dispatch_dump_table(name).splitlines()
    return next(line for line in lines if line.startswith("PrivateUse1:"))


def test_random_numbers_follow_the_seed():
    torch.manual_seed(7)
    first = [
        torch.randn(4, device=NPU),
        torch.randperm(8, device=NPU),
        F.dropout(torch.ones(64, device=NPU)),
    ]
    torch.npu.manual_seed_all(7)
    second = [
        torch.randn(4, device=NPU),
        torch.randperm(8, device=NPU),
        F.dropout(torch.ones(64, device=NPU)),
    ]
    for a, b in zip(first, second):
        assert torch.equal(a.cpu(), b.cpu())
    assert not torch.equal(torch.randn(4, device=NPU).cpu(), first[0].cpu())


def test_the_state_of_the_generator_can_be_saved():
    state = torch.npu.get_rng_state()
    first = torch.rand(5, device=NPU)
    torch.npu.set_rng_state(state)
    assert torch.equal(first.cpu(), torch.rand(5, device=NPU).cpu())


def test_a_generator_of_ones_own_is_independent():
    a, b = (torch.Generator(device="npu").manual_seed(3) for _ in range(2))
    before = torch.npu.get_rng_state()
    first = torch.randn(4, device=NPU, generator=a)
    assert torch.equal(first.cpu(), torch.randn(4, device=NPU, generator=b).cpu())
    assert torch.equal(before, torch.npu.get_rng_state())
    x = torch.empty(6, device=NPU)
    assert torch.equal(x.normal_(generator=a).clone().cpu(), x.normal_(generator=b).clone().cpu())


def test_the_cpus_generator_is_left_alone():
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    F.dropout(torch.ones(8, device=NPU))
    torch.randn(3, device=NPU)
    assert torch.equal(wanted, torch.rand(3))


def test_two_devices_do_not_mix():
    a, b = torch.ones(2, device="npu:0"), torch.ones(2, device="npu:1")
    with pytest.raises(RuntimeError, match="same device"):
        a + b
    assert b.to("npu:0").device.index == 0
    assert (a + b.to("npu:0")).sum().item() == 4


def test_a_cpu_tensor_is_refused_where_the_chip_would_refuse_it():
    a = torch.ones(2, 2, device=NPU)
    with pytest.raises(RuntimeError, match="npu:0 and cpu"):
        a + torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"cpu"):
        F.linear(a, torch.ones(2, 2))
    assert (a + torch.tensor(1.0)).sum().item() == 8  # a number in a tensor may stay where it is
    assert a[torch.tensor([0])].shape == (1, 2)


def test_views_of_another_dtype_share_memory():
    x = torch.zeros(3, dtype=torch.complex64, device=NPU)
    real = torch.view_as_real(x)
    real[:, 1] = 2
    assert x.imag.cpu().tolist() == [2, 2, 2]
    y = torch.ones(4, device=NPU)
    y.view(torch.int32).zero_()
    assert y.sum().item() == 0
    z = torch.arange(6.0, device=NPU).reshape(2, 3)
    z.diagonal().fill_(-1)
    assert z[0, 0].item() == -1
    assert z.t()[2, 0].item() == 2


def test_outputs_are_resized():
    a = torch.arange(4.0, device=NPU)
    out = torch.empty(0, device=NPU)
    assert torch.add(a, 1, out=out) is out
    same(out, torch.arange(4.0) + 1)
    big = torch.empty(4, 4, device=NPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.mul(a, 2, out=big)
    same(big, torch.arange(4.0) * 2)
    values, indices = torch.empty(0, device=NPU), torch.empty(0, dtype=torch.long, device=NPU)
    torch.sort(a, descending=True, out=(values, indices))
    assert indices.cpu().tolist() == [3, 2, 1, 0]
    rows = torch.empty(0, device=NPU)
    torch.cat([a, a], out=rows)
    assert rows.shape == (8,)


def test_shapes_that_depend_on_data():
    x = torch.tensor([0.0, 1.0, 0.0, 2.0], device=NPU)
    assert x.nonzero().cpu().tolist() == [[1], [3]]
    assert x[x > 0].cpu().tolist() == [1, 2]
    assert torch.unique(torch.tensor([3, 1, 3], device=NPU)).cpu().tolist() == [1, 3]
    assert torch.masked_select(x, x > 1).cpu().tolist() == [2]
    assert torch.bincount(torch.tensor([0, 2, 2], device=NPU)).cpu().tolist() == [1, 0, 2]


def test_lists_of_tensors():
    parts = [torch.full((2,), float(i), device=NPU) for i in range(3)]
    assert torch.stack(parts).shape == (3, 2)
    assert [len(p) for p in torch.cat(parts).split([1, 5])] == [1, 5]
    torch._foreach_add_(parts, 1.0)
    assert parts[2].cpu().tolist() == [3, 3]
    x = torch.zeros(3, 3, device=NPU)
    x[torch.tensor([0, 1], device=NPU), torch.tensor([1, 2], device=NPU)] = 5.0
    assert x.sum().item() == 10
    x.index_put_((torch.tensor([0], device=NPU),), torch.ones(3, device=NPU), accumulate=True)
    assert x[0].sum().item() == 8


def test_sparse_and_quantised_tensors_are_refused():
    with pytest.raises((NotImplementedError, RuntimeError), match="sparse|Sparse"):
        torch.eye(3, device=NPU).to_sparse() @ torch.ones(3, device=NPU)
    with pytest.raises((NotImplementedError, RuntimeError), match=r"quanti[sz]|Quanti[sz]"):
        torch.quantize_per_tensor(torch.ones(3, device=NPU), 0.1, 0, torch.qint8)


def test_renorm_and_one_hot():
    x = torch.arange(6.0).reshape(2, 3)
    same(torch.renorm(x.npu(), 2, 0, 1.0), torch.renorm(x, 2, 0, 1.0))
    a, b = x.clone().requires_grad_(), x.npu().requires_grad_()
    torch.renorm(a, 2, 0, 1.0).pow(2).sum().backward()
    torch.renorm(b, 2, 0, 1.0).pow(2).sum().backward()
    same(b.grad, a.grad)
    same(F.one_hot(torch.tensor([0, 2, 1]).npu(), 3), F.one_hot(torch.tensor([0, 2, 1]), 3))
    same(F.one_hot(torch.tensor([0, 2, 1]).npu()), F.one_hot(torch.tensor([0, 2, 1])))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_train_as_on_the_cpu(kind, bidirectional):
    torch.manual_seed(0)
    host = kind(5, 6, num_layers=2, bidirectional=bidirectional, batch_first=True)
    device = copy.deepcopy(host).npu()
    x = torch.randn(3, 4, 5)
    wanted, got = host(x)[0], device(x.npu())[0]
    same(got, wanted, 1e-5)
    wanted.pow(2).mean().backward()
    got.pow(2).mean().backward()
    for a, b in zip(device.parameters(), host.parameters()):
        same(a.grad, b.grad, 1e-5)


def test_results_of_a_size_that_depends_on_the_data():
    """Equal shapes in, another number of rows out, every time."""
    x = torch.arange(12.0).view(6, 2)
    for bound in (7.0, 3.0, 9.0, 20.0, -1.0):
        mask = x[:, 0] > bound
        for got, wanted in (
            (x.npu()[mask.npu()], x[mask]),
            (
                torch.masked_select(x.npu(), mask.npu()[:, None]),
                torch.masked_select(x, mask[:, None]),
            ),
            (torch.nonzero(mask.npu()), torch.nonzero(mask)),
            (torch.unique_consecutive(mask.npu()), torch.unique_consecutive(mask)),
        ):
            assert got.shape == wanted.shape
            same(got.float(), wanted.float())
            same((got != 0).float() + 1, (wanted != 0).float() + 1)


def test_an_operator_that_resizes_its_result_on_the_way():
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        a, b = torch.randn(3, 4), torch.randn(3, 4)
        for reduction in ("sum", "mean", "none"):
            wanted = F.smooth_l1_loss(a, b, reduction=reduction)
            same(F.smooth_l1_loss(a.npu(), b.npu(), reduction=reduction), wanted, 1e-5)


def test_padding_that_cuts_off_touches_nothing_else():
    draw = np.random.default_rng(0)
    around = []
    for _ in range(200):
        shape = draw.integers(1, 6, draw.integers(1, 5)).tolist()
        pads = []
        for size in shape[::-1]:
            before, after = draw.integers(-size, 4, 2).tolist()
            pads += [before, after if size + before + after >= 0 else -size - before]
        pads = pads[: 2 * int(draw.integers(1, len(shape) + 1))]
        x = torch.randn(shape)
        around.append(torch.full((128,), 7.0).npu())  # 512 bytes: next to the results
        same(F.pad(x.npu(), pads, value=3.0), F.pad(x, pads, value=3.0), 0)
    assert all(bool((one.cpu() == 7).all()) for one in around)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences_with_lengths_on_the_cpu(bidirectional):
    """The vendor's own packing: padded rows, so only the LSTM takes it (its GRU has no kernel)."""
    torch.manual_seed(0)
    host = nn.LSTM(4, 6, batch_first=True, bidirectional=bidirectional)
    device = copy.deepcopy(host).npu()
    x, lengths = torch.randn(3, 5, 4), torch.tensor([5, 3, 2])
    results = []
    for net, data in ((host, x), (device, x.npu())):
        packed = nn.utils.rnn.pack_padded_sequence(data, lengths, batch_first=True)
        padded, back = nn.utils.rnn.pad_packed_sequence(net(packed)[0], batch_first=True)
        padded.pow(2).mean().backward()
        assert back.tolist() == [5, 3, 2]
        results.append(padded)
    same(results[1], results[0], 1e-5)
    for a, b in zip(device.parameters(), host.parameters()):
        same(a.grad, b.grad, 1e-5)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_recurrent_cells(kind):
    torch.manual_seed(0)
    host = kind(5, 6)
    device = copy.deepcopy(host).npu()
    x = torch.randn(3, 5)
    wanted, got = host(x), device(x.npu())
    first = lambda result: result[0] if isinstance(result, tuple) else result
    same(first(got), first(wanted), 1e-5)


def test_out_of_memory_is_torchs_own_error():
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.empty(70 << 30, dtype=torch.uint8, device=NPU)
    assert torch.ones(2, device=NPU).sum().item() == 2


def test_losses_and_gradients_match():
    torch.manual_seed(0)
    x, y = torch.randn(4, 5), torch.rand(4, 5)
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits):
        a, b = x.clone().requires_grad_(), x.npu().requires_grad_()
        wanted, got = loss(a, y), loss(b, y.npu())
        same(got, wanted)
        wanted.backward()
        got.backward()
        same(b.grad, a.grad)
    a, b = x.clone().requires_grad_(), x.npu().requires_grad_()
    F.kl_div(a.log_softmax(-1), y, reduction="batchmean").backward()
    F.kl_div(b.log_softmax(-1), y.npu(), reduction="batchmean").backward()
    same(b.grad, a.grad)


def test_autocast_and_scaler():
    torch.manual_seed(0)
    model = nn.Linear(8, 4).npu()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("npu", init_scale=1024.0)
    before = model.weight.detach().clone()
    with torch.autocast("npu", dtype=torch.float16):
        out = model(torch.randn(3, 8, device=NPU))
        assert out.dtype is torch.float16
        loss = out.float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    assert not torch.equal(before.cpu(), model.weight.detach().cpu())
    model.weight.grad.fill_(float("inf"))
    scaler.unscale_(optimiser)
    scaler.step(optimiser)
    scaler.update()
    assert scaler.get_scale() == 512.0


def test_optimisers_match():
    for kind in (
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
    ):
        torch.manual_seed(0)
        host = nn.Linear(4, 3)
        device = copy.deepcopy(host).npu()
        a, b = kind(host.parameters(), lr=0.05), kind(device.parameters(), lr=0.05)
        x = torch.randn(5, 4)
        for _ in range(3):
            for model, optimiser, data in ((host, a, x), (device, b, x.npu())):
                optimiser.zero_grad()
                model(data).pow(2).mean().backward()
                optimiser.step()
        same(device.weight, host.weight, 1e-6)


def test_modes_of_the_program_do_not_reach_below_the_dispatcher():
    with torch.device("npu"):
        x = torch.ones(2, 3)
        assert x.device.type == "npu"
        assert (x @ torch.ones(3, 2)).device.type == "npu"
    with torch.inference_mode():
        frozen = torch.ones(3, device=NPU) * 2
    weight = torch.ones(3, device=NPU, requires_grad=True)
    (weight * frozen.clone()).sum().backward()
    assert weight.grad.cpu().tolist() == [2, 2, 2]


def test_checkpointing_and_function_transforms():
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(3, 3).npu()
    x = torch.ones(2, 3, device=NPU, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    grads = torch.func.vmap(torch.func.grad(lambda v: (v**2).sum()))(torch.ones(2, 3, device=NPU))
    assert grads.cpu().tolist() == [[2.0] * 3] * 2


def test_streams_events_and_pinned_memory():
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    stream = torch.npu.Stream()
    start.record()
    with torch.npu.stream(stream):
        x = torch.ones(8, device=NPU)
        x.record_stream(stream)
    stream.synchronize()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    pinned = torch.ones(4).pin_memory()
    assert pinned.is_pinned()
    assert pinned.npu(non_blocking=True).sum().item() == 4


def test_checkpoints_load_onto_the_device():
    file = io.BytesIO()
    torch.save({"w": torch.arange(3.0, device=NPU)}, file)
    file.seek(0)
    assert torch.load(file, map_location="npu")["w"].device.type == "npu"
    file.seek(0)
    assert torch.load(file, map_location="cpu")["w"].tolist() == [0, 1, 2]


def test_memory_is_counted_by_the_packages_allocator():
    torch.npu.empty_cache()
    before = torch.npu.memory_allocated()
    x = torch.empty(1 << 20, device=NPU)
    assert torch.npu.memory_allocated() - before >= 4 << 20
    del x
    assert torch.npu.memory_allocated() == before
    free, total = torch.npu.mem_get_info()
    assert total == 64 << 30
    assert free <= total


def test_double_becomes_float_as_on_the_chip():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.ones(2, device=NPU).double().dtype is torch.float32


def test_convolutions_and_normalisation_match():
    torch.manual_seed(0)
    host = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 1),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    device = copy.deepcopy(host).npu()
    x = torch.randn(2, 3, 8, 8)
    wanted, got = host(x), device(x.npu())
    same(got, wanted, 1e-5)
    wanted.pow(2).sum().backward()
    got.pow(2).sum().backward()
    for a, b in zip(device.parameters(), host.parameters()):
        same(a.grad, b.grad, 1e-4)
    same(device[1].running_mean, host[1].running_mean, 1e-6)


def test_attention_takes_the_fused_kernel():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 16, 8) for _ in range(3))
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    got = F.scaled_dot_product_attention(q.npu(), k.npu(), v.npu(), is_causal=True)
    same(got, wanted, 1e-5)


# torch's builds for CUDA bring a broadcast of their own, which ends in the process's death here.
in_one_process = pytest.mark.skipif(
    torch.version.cuda is not None, reason="torch is built for CUDA"
)


@in_one_process
def test_one_process_trains_on_several_devices():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    plain = copy.deepcopy(model)
    x = torch.randn(6, 8)
    plain(x).pow(2).mean().backward()
    model = model.npu()
    result = nn.DataParallel(model, device_ids=[0, 1])(x.npu())
    result.pow(2).mean().backward()
    assert result.get_device() == 0
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        same(one.grad, other.grad)


@in_one_process
def test_one_process_moves_tensors_between_several_devices():
    from torch.nn.parallel import comm

    large = torch.arange(3.0 * (1 << 20))  # more than one slot of the shared memory
    for number, copied in enumerate(comm.broadcast(large.npu(), [0, 1, 2])):
        assert copied.get_device() == number
        same(copied, large, 0)
    parts = [torch.full((3,), number + 1.0, device=f"npu:{number}") for number in range(3)]
    added = comm.reduce_add(parts, destination=1)
    assert (added.get_device(), added.tolist()) == (1, [6.0] * 3)
    given = comm.scatter(torch.arange(6.0).npu(), [0, 1, 2])
    assert [part.tolist() for part in given] == [[0, 1], [2, 3], [4, 5]]
    assert comm.gather(parts, destination=2).tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_the_vendors_switch_runs_cuda_code():
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    assert torch.cuda.is_available()
    assert torch.ones(2).cuda().device.type == "npu"


def test_a_boolean_mask_reads_writes_and_has_a_gradient() -> None:
    x = torch.randn(6, 5, device="npu", requires_grad=True)
    mask = torch.tensor([1, 0, 1, 0, 1, 0], device="npu").bool()
    x[mask].sum().backward()
    assert x.grad is not None
    assert x.grad.sum(1).tolist() == [5, 0, 5, 0, 5, 0]
    z = torch.zeros(6, device="npu")
    z[mask] = 2.0
    assert z.tolist() == [2, 0, 2, 0, 2, 0]


# Defects that were reported from outside, one check each.
def test_the_backward_of_max_pool2d_is_that_of_the_cpu() -> None:
    host = torch.randn(1, 2, 8, 8).requires_grad_()
    device = host.detach().to(NPU).requires_grad_()
    for one in (host, device):
        F.max_pool2d(one, 2).sum().backward()
    assert torch.equal(device.grad.cpu(), host.grad)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett"])
def test_window_functions_are_made_on_the_device(name: str) -> None:
    window = getattr(torch, f"{name}_window")
    same(window(16, device=NPU), window(16), 1e-5)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_bfloat16_is_resized_with_antialias(mode: str) -> None:
    image = torch.randn(1, 3, 16, 16, dtype=torch.bfloat16)
    words = {"size": (8, 8), "mode": mode, "antialias": True}
    found = F.interpolate(image.to(NPU), **words)
    assert found.dtype == torch.bfloat16
    same(found.float(), F.interpolate(image.float(), **words), 2e-2)  # 8 bits of mantissa


def test_gaps_of_the_cpu_are_not_the_chips() -> None:
    cube = torch.ones(1, 2, 4, 4, 4, dtype=torch.bfloat16, device=NPU)
    assert F.avg_pool3d(cube, 2).cpu().float().eq(1).all()
    points = torch.eye(4, dtype=torch.float16, device=NPU)
    same(torch.cdist(points, points), (1 - torch.eye(4)).mul(2**0.5).half(), 2e-3)
    experts = torch.tensor([0, 1, 1, 7], dtype=torch.int32, device=NPU)
    counted = torch.histc(experts, bins=8, min=0, max=7)
    assert counted.cpu().tolist() == [1, 2, 0, 0, 0, 0, 0, 1]
    whole = torch.ones(3, dtype=torch.uint64, device=NPU)
    assert (whole + whole).cpu().tolist() == [2, 2, 2]


@pytest.mark.parametrize("kind", ["max_pool3d", "adaptive_max_pool3d", "max_unpool3d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pooling_of_volumes_has_a_gradient(kind, dtype) -> None:
    def pooled(x):
        if kind != "max_unpool3d":
            return getattr(F, kind)(x, 2)
        return F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2)

    x = torch.randn(2, 3, 4, 8, 8, dtype=dtype)
    ours, theirs = x.to(NPU).requires_grad_(), x.clone().requires_grad_()
    for _ in range(2):
        pooled(ours).square().sum().backward()
        pooled(theirs).square().sum().backward()
    same(ours.grad, theirs.grad)


def test_a_gap_of_the_cpu_is_gone_round_each_time() -> None:
    x = torch.randn(2, 5, 4, dtype=torch.float16)
    ours = x.to(NPU).requires_grad_()
    theirs = x.float().requires_grad_()
    for _ in range(3):
        torch.cdist(ours, ours * 2).float().sum().backward()
        torch.cdist(theirs, theirs * 2).sum().backward()
    same(ours.grad.float(), theirs.grad, 3e-2)


def test_numbers_stand_for_tensors_in_place_too() -> None:
    ours, theirs = torch.arange(4, device=NPU), torch.arange(4)
    for one in (ours, theirs):
        one |= 5
        one.bitwise_or_(8)
        one &= 13
    assert ours.tolist() == theirs.tolist()


def test_operators_that_the_package_calls_below_the_dispatcher() -> None:
    ours, theirs = torch.zeros(7, 3, device=NPU), torch.zeros(7, 3)
    same(ours.fill_diagonal_(2.0, wrap=True), theirs.fill_diagonal_(2.0, wrap=True))
    x = torch.randn(3, 3)
    same(torch.slogdet(x.to(NPU))[1], torch.slogdet(x)[1], 1e-5)
    out = torch.empty(3, 3, device=NPU)
    same(torch.max(x.to(NPU), -x.to(NPU), out=out), torch.max(x, -x))
    host = torch.randn(2, 2, 3).requires_grad_()
    device = host.detach().to(NPU).requires_grad_()
    for theta in (host, device):
        F.affine_grid(theta, (2, 3, 4, 4)).square().sum().backward()
    same(device.grad, host.grad, 1e-5)


def test_what_nothing_helps_is_said_to_be_ours() -> None:
    flags = torch.ones(2, 2, dtype=torch.bool, device=NPU)
    with pytest.raises(NotImplementedError, match="rehearsal device: .* nothing about the chip"):
        flags.trace()


def test_a_refused_call_that_is_not_computed_raises_the_refusal() -> None:
    flags = torch.ones(2, 2, dtype=torch.bool, device=NPU)
    with pytest.raises(RuntimeError, match="takes no bool .* the chip refuses this call"):
        flags @ flags


def test_ctc_loss_is_that_of_the_cpu() -> None:
    chances, labels = torch.randn(10, 2, 5).log_softmax(-1), torch.tensor([[1, 2, 3], [4, 1, 2]])
    lengths = torch.full((2,), 10), torch.full((2,), 3)
    on_device = [one.to(NPU) for one in (chances, labels, *lengths)]
    same(F.ctc_loss(*on_device), F.ctc_loss(chances, labels, *lengths), 1e-4)


def test_device_memory_is_shared_where_it_lies() -> None:
    assert torch.ones(3, device=NPU).share_memory_().cpu().tolist() == [1, 1, 1]


@pytest.mark.parametrize("numbers", [(1, True, 1j, 1.0), (1.0, 1j, True, 1), (True, 1, 1.0, 1j)])
def test_a_number_of_another_kind_is_another_call(numbers: tuple[complex, ...]) -> None:
    """True == 1 == 1.0, and the dtype of a sum is that of the kinds."""
    for dtype in (torch.bool, torch.int16, torch.float16):
        host = torch.ones(3, dtype=dtype)
        chip = host.to("npu")
        for number in numbers:
            if dtype is torch.float16 and isinstance(number, complex):
                continue  # the chip has no halves of complex numbers
            assert (chip + number).dtype == (host + number).dtype, (dtype, number)


def test_the_default_dtype_is_part_of_a_call() -> None:
    chip = torch.arange(3, device="npu")
    assert (chip + 0.5).dtype == torch.float32
    torch.set_default_dtype(torch.float16)
    try:
        assert (chip + 0.5).dtype == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)
    assert (chip + 0.5).dtype == torch.float32


def test_private_formats_keep_their_numbers_and_are_refused_where_the_package_does() -> None:
    import torch_npu

    if not hasattr(torch_npu, "npu_format_cast"):
        pytest.skip("this release has no function of that name")
    host = torch.randn(40, 70).half()
    torch.npu.config.allow_internal_format = True
    tiled = torch_npu.npu_format_cast(host.to(NPU), 29)
    torch.npu.config.allow_internal_format = False
    assert torch_npu.get_npu_format(tiled) == 29
    assert tiled.untyped_storage().nbytes() == 5 * 3 * 16 * 16 * 2  # tiles of 16 rows and columns
    same(tiled, host)
    same(tiled.t(), host.t())
    same(tiled[3:9], host[3:9])
    same(torch.ones(2, 40).half().to(NPU) @ tiled, torch.ones(2, 40).half() @ host, 1e-2)
    plain = torch_npu.npu_format_cast(tiled, 2)
    assert torch_npu.get_npu_format(plain) == 2
    same(plain, host)
    with pytest.raises(RuntimeError, match="internal format"):
        torch._foreach_norm([tiled], 2)


def test_memory_that_elements_share_is_filled() -> None:
    for size, stride in (((4, 3, 2), (10, 0, 3)), ((4, 3, 2), (1, 1, 1)), ((0, 3), (3, 0))):
        host = torch.empty_strided(size, stride).fill_(2.0)
        chip = torch.empty_strided(size, stride, device="npu").fill_(2.0)
        assert torch.equal(chip.cpu(), host)
    row = torch.zeros(3, device="npu")
    row.expand(2, 3).fill_(1.0)
    assert row.tolist() == [1, 1, 1]
