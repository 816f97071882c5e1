"""Fills that are torch's own decompositions, which end in operators that the chip has."""

from __future__ import annotations

from torch._decomp import decomposition_table

from joymigrate.run.rehearse.fill.declare import fill
from joymigrate.run.rehearse.fill.register import find

# By the overload whose decomposition computes: the overloads, rtol and atol.
TORCHS = {
    "heaviside": ("heaviside heaviside_ heaviside.out", 0, 0),
    "special_entr": ("special_entr special_entr.out", 2e-6, 1e-6),
    "special_xlog1py": ("special_xlog1py special_xlog1py.out", 2e-6, 1e-6),
    "huber_loss": ("huber_loss huber_loss.out", 2e-6, 1e-6),
    "huber_loss_backward": ("huber_loss_backward.out", 2e-6, 1e-6),
    "multi_margin_loss": ("multi_margin_loss multi_margin_loss.out", 2e-6, 1e-6),
    "_fused_rms_norm_backward": ("_fused_rms_norm_backward", 5e-6, 2e-6),
    "_weight_norm_interface": ("_weight_norm_interface", 3e-6, 1e-6),
}

for _name, (_overloads, _rtol, _atol) in TORCHS.items():
    _decomposition = decomposition_table.get(find(_name))
    if _decomposition is not None:  # this torch has it
        fill(_overloads, rtol=_rtol, atol=_atol)(_decomposition)
