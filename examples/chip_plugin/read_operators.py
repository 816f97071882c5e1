"""Reads which operators have a kernel for `xpu`, for operators.csv.

    git clone -b release/2.13 https://github.com/intel/torch-xpu-ops
    python read_operators.py torch-xpu-ops > joymigrate_intel/rules/ops/operators.csv

Kernels that Intel keeps in its own repository are read from there, the rest from the installed
torch, whose wheels carry `native_functions.yaml`. Neither is imported.
"""

import csv
import importlib.util
import re
import sys
from pathlib import Path

import yaml

TABLE = "ATen/native/native_functions.yaml"
LAYOUTS = ("SparseXPU", "SparseCsrXPU", "NestedTensorXPU")
# Made of other operators, or computed by the out variant.
COMPUTED_ANYWAY = (
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd"),
    *("CompositeExplicitAutogradNonFunctional", "structured_delegate"),
)


def functions(path):
    """Names, and the kinds of kernels that they have."""
    for function in yaml.safe_load(path.read_text()):
        keys = {k.strip() for entry in function.get("dispatch", {}) for k in entry.split(",")}
        keys |= {key for key in COMPUTED_ANYWAY if function.get(key)}
        yield function["func"].split("(")[0], keys


def main(repository):
    torchgen = Path(importlib.util.find_spec("torchgen").origin).parent
    found = {}
    for path in (repository / "yaml/native/native_functions.yaml", torchgen / "packaged" / TABLE):
        for name, keys in functions(path):
            found.setdefault(name, set()).update(keys)
    rows = {}
    for name, keys in found.items():
        if "XPU" in keys:
            rows[name] = ("", "")
        elif keys & {*LAYOUTS} and not keys & {*COMPUTED_ANYWAY}:
            rows[name] = ("layout", "for sparse or nested tensors only")
    source = (repository / "src/ATen/native/xpu/XPUFallback.template").read_text()
    listed = source.partition("fallback_list = {")[2].partition("}")[0]
    for name in re.findall(r'"([\w.]+)"', listed):
        rows[name] = ("cpu_fallback", "always computed on the CPU")
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("op", "status", "note"))
    out.writerows((name, *row) for name, row in sorted(rows.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
