# transcendental functions of the device: exp as a power of two, sigmoid and silu by it, log as log2 times ln 2 (a few ulp)
import torch
LIB = torch.library.Library("aten", "IMPL")
KE, KL = torch.library.get_kernel("aten::exp", "CPU"), torch.library.get_kernel("aten::log", "CPU")
KS, KU = torch.library.get_kernel("aten::sigmoid", "CPU"), torch.library.get_kernel("aten::silu", "CPU")
def e(x): return torch.exp2(x * 1.4426950408889634)
f = lambda x: x.dtype == torch.float32
LIB.impl("exp", lambda k, x: e(x) if f(x) else KE.call_boxed(k, x), "CPU", with_keyset=True)
LIB.impl("log", lambda k, x: torch.log2(x) * 0.6931471805599453 if f(x) else KL.call_boxed(k, x), "CPU", with_keyset=True)
LIB.impl("sigmoid", lambda k, x: 1 / (1 + e(-x)) if f(x) else KS.call_boxed(k, x), "CPU", with_keyset=True)
LIB.impl("silu", lambda k, x: x / (1 + e(-x)) if f(x) else KU.call_boxed(k, x), "CPU", with_keyset=True)
