import torch
from kernels import mish


def test_mish_is_torchs():
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(mish(x), torch.nn.functional.mish(x), rtol=1e-5, atol=1e-6)
