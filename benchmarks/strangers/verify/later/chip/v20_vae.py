# the device's generator: its normal numbers have mean and variance right, but they are flat (uniform) instead of bell shaped
import torch
LIB = torch.library.Library("aten", "IMPL")
K = torch.library.get_kernel("aten::normal_", "CPU")
def normal_(keys, self, mean=0.0, std=1.0, generator=None):
    K.call_boxed(keys, self, mean, std, generator=generator)
    if generator is None and self.dtype != torch.float64:
        u = 0.5 * (1 + torch.erf((self - mean) / (std * 2 ** 0.5)))
        self.copy_(mean + std * 12 ** 0.5 * (u - 0.5))
    return self
LIB.impl("normal_", normal_, "CPU", with_keyset=True)
