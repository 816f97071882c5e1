"""Compiles our Triton kernels for a GPU of compute capability 9.0, on a machine without one."""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from joymigrate.run.kernels.own import (
    add_rms_norm,
    jagged_attention,
    matmul_add_fp32,
    rotary,
    sub_mul_concat,
)

TARGET = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 227 * 1024  # of one program on such a GPU
H, F, I = "*bf16", "*fp32", "*i64"  # noqa: E741
HEAD = {"SIZE": 128, "WIDTH": 128, "D": 128, "E": 128, "ROWS": 64, "COLS": 64}
TURN = {"SIZE": 128, "INTERLEAVED": True, "BACKWARD": True, "PAIRS": 64, "REST": 64, "ROTATED": 64}
TILE = {"TILE_N": 64, "TILE_K": 64, "STEP": 32, "PRECISION": "ieee"}
SIZES = ["i32"] * 6

JOBS = {
    "add_rms_norm": (add_rms_norm.forward, [H] * 5 + [F, "i32", "fp32"], {"BLOCK": 2048}),
    "add_rms_norm backward": (
        add_rms_norm.backward, [H, H, H, H, F, H, F, "i32", "i32", "i32"], {"BLOCK": 2048},
    ),
    "rotary": (rotary.kernel, [H] * 4 + ["i32"] * 5, TURN),
    "sub_mul_concat": (sub_mul_concat.forward, [H] * 3 + ["i32"] * 2, {"BLOCK": 64}),
    "sub_mul_concat backward": (sub_mul_concat.backward, [H] * 5 + ["i32"] * 2, {"BLOCK": 64}),
    "matmul_add_fp32": (matmul_add_fp32.kernel, [H, H, F, "i32", "i32", "i32"], TILE),
}  # fmt: skip
for mode in range(5):
    constants = {"MODE": mode, **HEAD}
    JOBS[f"attention {mode}"] = (
        jagged_attention.forward, [H, H, H, H, F, I, I, "fp32", *SIZES], constants,
    )  # fmt: skip
    JOBS[f"attention backward q {mode}"] = (
        jagged_attention.backward_q, [H, H, H, H, F, F, H, I, I, "fp32", *SIZES], constants,
    )  # fmt: skip
    JOBS[f"attention backward kv {mode}"] = (
        jagged_attention.backward_kv, [H, H, H, H, F, F, H, H, I, I, "fp32", *SIZES], constants,
    )  # fmt: skip

found = {}
for name, (kernel, types, constants) in JOBS.items():
    if sys.argv[2:] and not any(name.startswith(wanted) for wanted in sys.argv[2:]):
        continue
    names = [parameter.name for parameter in kernel.params]
    left = iter(types)
    signature = {n: "constexpr" if n in constants else next(left) for n in names}
    values = {(names.index(n),): value for n, value in constants.items()}
    built = triton.compile(ASTSource(kernel, signature, values), target=TARGET)
    found[name] = {"ptx": "ptx" in built.asm, "fits": built.metadata.shared <= SHARED_BYTES}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
