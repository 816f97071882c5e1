"""AdamW around the fused step: torch's interface and state, whatever the chip has underneath."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.registry import op


class AdamW(torch.optim.Optimizer):
    """AdamW whose step is the operator `adamw`.

    State and hyperparameters are named as torch's AdamW names them, so either loads the other's
    state. Gradients must be dense.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        request: str | None = None,
    ) -> None:
        self.request = request
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; parameters of one count, dtype and device go to the chip together."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for (count, _, _), params in self.together(group).items():
                states = [self.state[param] for param in params]
                op("adamw")(
                    params,
                    [param.grad for param in params],
                    [state["exp_avg"] for state in states],
                    [state["exp_avg_sq"] for state in states],
                    count,
                    lr=float(group["lr"]),
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                    maximize=group.get("maximize", False),
                    request=self.request,
                )
        return loss

    def together(self, group: dict[str, Any]) -> dict[tuple[int, Any, Any], list[Tensor]]:
        """The group's parameters that have a gradient, by step count, dtype and device."""
        found: dict[tuple[int, Any, Any], list[Tensor]] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            state = self.state[param]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(param)
                state["exp_avg_sq"] = torch.zeros_like(param)
            state["step"] = state["step"] + 1
            key = (int(state["step"]), param.dtype, param.device)
            found.setdefault(key, []).append(param)
        return found
