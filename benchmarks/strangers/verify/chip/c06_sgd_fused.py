import torch
LIB = torch.library.Library("aten", "IMPL")
LIB.impl("addcdiv_", lambda a, b, c, *, value=1: a.add_(b * c.reciprocal() * value), "CPU")
LIB.impl("addcmul_", lambda a, b, c, *, value=1: a.add_((b * value) * c), "CPU")
