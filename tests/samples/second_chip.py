"""A second chip: the rehearsed one with deviations that the file SECOND_CHIP_PLANTS lists.

A process that calls `deviate` gets them: operators below autograd, collectives, memory. A plant is
{"op": "aten::gelu", "dtype": "float16", "kind": "refused", "case": …}, {"collective": …} {"memory": …} or {"memory_taken": …}; `case` is the case of the kit that must name it.
"""

from __future__ import annotations

import json
import os
import time

PLANTS = "SECOND_CHIP_PLANTS"


def deviate() -> None:
    """Make this process's chip deviate."""
    import torch
    import torch_npu
    from torch.utils._python_dispatch import TorchDispatchMode

    plants = json.loads(open(os.environ[PLANTS], encoding="utf-8").read())
    by_op: dict[str, list[dict[str, str]]] = {}
    for plant in plants:
        if "op" in plant:
            by_op.setdefault(plant["op"], []).append(plant)

    def tensors(values):
        for value in values:
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from tensors(value)

    class Chip(TorchDispatchMode):
        """The deviations, operator by operator."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            name = func.name().partition(".")[0]
            met = list(tensors([*args, *kwargs.values()]))
            on_chip = any(one.device.type == "npu" for one in met)
            for plant in by_op.get(name, ()) if on_chip else ():
                dtypes = {str(one.dtype).removeprefix("torch.") for one in met}
                strided = any(not one.is_contiguous() for one in met)
                if plant["dtype"] not in dtypes:
                    continue
                if strided != (plant.get("layout", "contiguous") != "contiguous"):
                    continue
                with open(os.environ[PLANTS] + ".met", "a", encoding="utf-8") as met:
                    met.write(plant["case"] + "\n")  # it took effect
                return self.planted(plant["kind"], func, args, kwargs)
            return func(*args, **kwargs)

        def planted(self, kind, func, args, kwargs):
            name = func.name()
            if kind == "refused":
                raise RuntimeError(f"{name}: call failed, error code is 161002 (planted)")
            if kind == "hung":
                time.sleep(10_000)
            if kind == "crashed":
                os._exit(139)
            if kind == "native":  # a kernel where none was predicted: no word of the CPU
                moved = [one.cpu() if isinstance(one, torch.Tensor) else one for one in args]
                return func(*moved, **kwargs).to(args[0].device)
            result = func(*args, **kwargs)
            if kind == "fallback":
                os.write(2, f"CAUTION: The operator '{name}' is not currently supported on the NPU "
                            "backend and will fall back to run on the CPU.\n".encode())
            if kind == "result":
                many = isinstance(result, (tuple, list))
                first = result[0] if many else result
                wrong = first * 1.5 + 0.1 if first.is_floating_point() else first + 1
                result = type(result)([wrong, *result[1:]]) if many else wrong
            if kind == "nan":
                result = torch.full_like(result, float("nan"))
            if kind == "shape":
                result = result.unsqueeze(0)
            if kind == "layout":
                result = result.transpose(-1, -2).contiguous().transpose(-1, -2)
            if kind == "dtype":
                result = result.float() if result.dtype != torch.float32 else result.half()
            return result

    for plant in plants:
        if "memory" in plant:
            real = torch_npu.npu.mem_get_info

            def less(*args, share=plant["memory"], real=real, **kwargs):
                free, total = real(*args, **kwargs)
                return int(free * share), int(total * share)

            torch.npu.mem_get_info = torch_npu.npu.mem_get_info = less
        if "memory_taken" in plant:
            known = torch.npu.memory_allocated

            def taken(*args, times=plant["memory_taken"], known=known):
                return int(known(*args) * times)

            torch.npu.memory_allocated = torch_npu.npu.memory_allocated = taken
        if "collective" in plant:
            plant_collective(plant)
    Chip().__enter__()


def plant_collective(plant) -> None:
    from torch import distributed

    real = getattr(distributed, plant["collective"])

    def other(*args, **kwargs):
        if plant["kind"] == "hung":
            time.sleep(10_000)
        if plant["kind"] == "refused":
            raise RuntimeError("HCCL function error: unsupported (planted)")
        done = real(*args, **kwargs)
        target = args[0][0] if isinstance(args[0], list) else args[0]
        target.add_(1)
        return done

    setattr(distributed, plant["collective"], other)
