"""Plain numbers that carry rounding, and the noise that stands for another chip."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from joymigrate.verify.constants import given_constants
from joymigrate.verify.measure import relative_error
from joymigrate.verify.noise import Noise, without_onednn


def test_what_was_read_explains_a_constant_and_no_more() -> None:
    """`1 / total` moves as `total` does; a rate that somebody wrote, or one far off, stays."""
    mine, theirs = [1 / 3.0003, 0.22, 1 / 7.7], [1 / 3.0, 0.2, 1 / 7.0]
    assert given_constants(mine, theirs, [3.0003], [3.0]) == [1 / 3.0, 0.22, 1 / 7.7]
    assert given_constants(mine, theirs, [3.0], [3.0]) == []  # nothing was read otherwise
    assert given_constants(mine, theirs[:2], [3.0003], [3.0]) == []  # other calls
    assert given_constants(mine, theirs, [], []) == []
    times = [[n + 1 / 3, 2.0] for n in (4, 7)]  # seconds of both sides, and a factor
    assert given_constants(*times, [3.0], [3.0]) == []
    assert given_constants(*times, [3.0], [3.0], {0}) == times[1]
    assert given_constants(*times, [], [], {0}) == times[1]
    assert given_constants([2.04], [2.0], [3.0], [3.0], {0}) == []


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.floats(1e-7, 1e-3))
def test_a_number_stays_within_what_was_read(numbers: list[float], drift: float) -> None:
    moved = [n * (1 + 30 * drift) for n in numbers]  # more than ten times the drift
    assert given_constants(moved, numbers, [1.0 + drift], [1.0]) == []


def test_noise_moves_results_and_no_values_of_others() -> None:
    x = torch.arange(1.0, 7.0).reshape(2, 3)
    kept = x.clone()
    with Noise(1.0):
        x.expand(2, 3)
        moved = x.exp()
    assert torch.equal(x, kept)
    assert not torch.equal(moved, kept.exp())


class Kernels(TorchDispatchMode):
    """Notes for each convolution whether oneDNN may compute it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "convolution" in str(func):
            name = str(func).split(".")[1]
            self.seen.append((name, mkldnn_allowed()))
        return func(*args, **(kwargs or {}))


def mkldnn_allowed() -> bool:
    """Whether oneDNN is on at this moment."""
    return bool(torch._C._get_mkldnn_enabled())


def test_convolutions_of_the_noisy_backend_are_not_those_of_onednn() -> None:
    """oneDNN adds up the gradient of a bias in one row, 80 units off where torch's own is one
    off; in a layout without gradients another kernel is 20 units off where oneDNN is one off."""
    convolution = torch.nn.Conv2d(3, 4, 3)
    with Kernels() as kernels, Noise(1.0):
        convolution(torch.randn(2, 3, 8, 8)).sum().backward()
        convolution.bfloat16()(torch.randn(2, 3, 8, 8, dtype=torch.bfloat16))
    forward, backward, narrow = kernels.seen
    assert forward == ("convolution", False)
    assert backward == ("convolution_backward", False)
    assert narrow == ("convolution", True)
    assert mkldnn_allowed()


def test_the_noisy_backend_is_as_inexact_as_transformed_patches() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(60, 3, 12, 12), torch.randn(12, 3, 3, 3)
    golden = torch.conv2d(x.double(), w.double(), padding=1)
    with torch.no_grad(), without_onednn():
        other = relative_error(torch.conv2d(x, w, padding=1), golden)
    with torch.no_grad(), Noise(1.0):
        noisy = relative_error(torch.conv2d(x, w, padding=1), golden)
    assert noisy >= 0.9 * other  # without the noise of single units it may be a little less
