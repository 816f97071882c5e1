"""What a seal says of time and of numbers: a lower bound, and where results first part.

The bound counts matrix products and convolutions at the chip's peak and nothing else: no memory
traffic, no launches, no host. A chip can't be faster; how much slower it is, nobody says here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joymigrate.chips import Sku

# Relative rounding of one input, half a unit in the last place: 2^-(explicit bits + 1).
ROUNDING = {"hf32": 2.0**-12, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24}
FLOATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# Operators that add up many terms: their result depends on the order, which is the chip's own.
SUMS = frozenset(
    {"sum", "mean", "var", "var_mean", "std", "norm", "prod", "cumsum", "logsumexp", "linalg_qr"}
    | {"_softmax", "_log_softmax", "native_layer_norm", "native_batch_norm", "native_group_norm"}
    | {"linalg_vector_norm", "nll_loss_forward", "mse_loss", "avg_pool2d", "index_add"}
)


def lower_bound(
    signatures: Sequence[Mapping[str, Any]],
    sku: Sku | None,
    rates: Mapping[str, tuple[float, str]] | None = None,
) -> dict[str, Any] | None:
    """Least time of all accepted matrix products and convolutions, in microseconds.

    None where the model's peak is not known. `operations` are multiplications and additions
    (2 for each product); `calls_counted` says how many of `calls` these are. `at_measured_rate`:
    the same work at the TFLOP/s by dtype that a kit measured (`rates`); a rate above the documented
    peak takes its place.
    """
    peaks = sku.peak_tflops if sku is not None else {}
    floats = [peaks[name] for name in FLOATS if name in peaks]
    if not floats or sku is None:
        return None
    total, counted = 0, 0
    by_dtype: dict[str, int] = {}
    accepted = [row for row in signatures if row["outcome"] == "accepted"]
    for row in accepted:
        number = operations(row)
        total += number * row["calls"]
        counted += row["calls"] * bool(number)
        if number:
            dtype = first_dtype(row)
            by_dtype[dtype] = by_dtype.get(dtype, 0) + number * row["calls"]
    known = rates or {}
    peak = max(floats + [rate for rate, _ in known.values()])
    found: dict[str, Any] = {
        "us": total / (peak * 1e6), "operations": total, "calls_counted": counted,
        "calls": sum(row["calls"] for row in accepted), "grade": "documented",
        "source": f"{sku.name}: at most {max(floats):g} TFLOP/s; {sku.source}",
    }  # fmt: skip
    if peak > max(floats):
        found |= {
            "grade": "measured",
            "source": next(s for rate, s in known.values() if rate == peak),
        }
    if by_dtype and all(known.get(dtype, (0.0,))[0] > 0 for dtype in by_dtype):
        found["at_measured_rate"] = {
            "us": sum(number / (known[dtype][0] * 1e6) for dtype, number in by_dtype.items()),
            "grade": "measured", "source": ", ".join(sorted({known[d][1] for d in by_dtype})),
        }  # fmt: skip
    return found


def first_dtype(row: Mapping[str, Any]) -> str:
    """The dtype of a call's first tensor; empty where it has none."""
    return next((str(one["tensor"]["dtype"]) for one in row["args"] if is_tensor(one)), "")


def operations(row: Mapping[str, Any]) -> int:
    """Multiplications and additions of one call; 0 for what is no matrix product."""
    name = base(row)
    shapes: list[list[int]] = [one["tensor"]["shape"] for one in row["args"] if is_tensor(one)]
    if name in ("mm", "matmul", "mv", "dot") and len(shapes) == 2 and len(shapes[0]) <= 2:
        return 2 * size(shapes[0]) * (shapes[1][1] if len(shapes[1]) == 2 else 1)
    if name in ("addmm", "addmv", "_addmm_activation") and len(shapes) == 3:
        return 2 * size(shapes[1]) * (shapes[2][1] if len(shapes[2]) == 2 else 1)
    if name in ("bmm", "baddbmm") and len(shapes) >= 2:
        return 2 * size(shapes[-2]) * shapes[-1][2]
    if name == "linear" and len(shapes) >= 2:
        return 2 * size(shapes[0]) * shapes[1][0]
    if name in ("convolution", "convolution_overrideable") and len(row["args"]) >= 7:
        return of_convolution(row["args"], shapes)
    return 0


def of_convolution(args: Sequence[Any], shapes: Sequence[Sequence[int]]) -> int:
    """Of a convolution that is not transposed: each result adds up one kernel."""
    stride, padding, dilation, transposed = args[3], args[4], args[5], args[6]
    if transposed or not all(isinstance(one, list) for one in (stride, padding, dilation)):
        return 0
    image, kernel = shapes[0], shapes[1]
    results = image[0] * kernel[0]
    for axis, length in enumerate(image[2:]):
        step, pad, hole = (one[axis % len(one)] for one in (stride, padding, dilation))
        results *= (length + 2 * pad - hole * (kernel[2 + axis] - 1) - 1) // step + 1
    return int(2 * results * size(kernel[1:]))


def first_divergence(
    signatures: Sequence[Mapping[str, Any]],
    precision: str,
    unit_of: Callable[[str], str | None],
) -> dict[str, Any] | None:
    """The first call, in the program's order, whose result differs from the CPU's by design.

    Inputs of the matrix unit that are rounded to `precision`, or sums in another order. `relative`
    is the rounding of one input (or of one addition), not of the result. None: no such call.
    `unit_of` names the matrix unit's kind of work for an operator, None for what runs elsewhere.
    """
    for number, row in enumerate(signatures):
        dtype = first_dtype(row)
        if row["outcome"] != "accepted" or dtype not in FLOATS:
            continue
        on_matrix_unit = unit_of(str(row["op"])) is not None
        if on_matrix_unit and dtype == "float32" and precision != "fp32":
            why, relative = f"float32 inputs are rounded to {precision}", ROUNDING[precision]
        elif on_matrix_unit or base(row) in SUMS:
            why, relative = "sums in the chip's own order", ROUNDING[FLOATS[dtype]]
        else:
            continue
        return {
            "call": number, "op": row["op"], "dtype": dtype, "why": why, "relative": relative,
            "grade": "rehearsed",
        }  # fmt: skip
    return None


def base(row: Mapping[str, Any]) -> str:
    """`aten::addmm.out` → `addmm`."""
    return str(row["op"]).partition("::")[2].partition(".")[0].rstrip("_")


def is_tensor(value: Any) -> bool:
    """Whether an argument of a sealed call is a tensor."""
    return isinstance(value, dict) and "tensor" in value


def size(shape: Sequence[int]) -> int:
    """Elements of a shape."""
    total = 1
    for length in shape:
        total *= length
    return total
