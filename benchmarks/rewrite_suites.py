"""Run public projects' own tests on this machine before and after an agnostic rewrite.

    python -m benchmarks.rewrite_suites --mirrors DIR [--suite NAME …]

DIR holds OWNER+NAME/repo git folders. Each suite is taken
twice from git, one copy is rewritten in the agnostic style, and the same tests run in both, on the
CPU. Printed: files changed, tests by outcome before, and every test whose outcome differs
after. The tests are those that need nothing but torch and common packages and end in about a
minute; a suite that cannot be collected here says so and counts for nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.rewrite_reading import checkout
from joymigrate import chips
from joymigrate.model import Style
from joymigrate.rewrite import patches, scan

# name → (repository, commit, what pytest runs): suites that could be run here
SUITES = {
    "ignite": ("pytorch/ignite", "de08e799cf", ["tests/ignite/engine/test_create_supervised.py"]),
    "egnn-pytorch": ("lucidrains/egnn-pytorch", "d3ba97d5b2", ["tests"]),
    "accelerate": ("huggingface/accelerate", "16cb6eb80d", ["tests/test_utils.py"]),
    "fvcore": ("facebookresearch/fvcore", "3378afe0d7", ["tests"]),
    "skorch": ("skorch-dev/skorch", "5db0ddc962", ["skorch/tests/test_utils.py"]),
    "torchsde": (
        "google-research/torchsde",
        "eb3a00e",
        ["tests/test_brownian_path.py", "tests/test_brownian_tree.py"],
    ),
    "torchdiffeq": (
        "rtqichen/torchdiffeq",
        "657943a",
        ["tests/api_tests.py", "tests/norm_tests.py"],
    ),
    "linear_operator": (
        "cornellius-gp/linear_operator",
        "386cff7",
        ["test/utils", "test/functions/test_matmul.py", "test/functions/test_solve.py"],
    ),
    "opacus": (
        "pytorch/opacus",
        "4d0ebc84",
        [
            "opacus/tests/accountants_test.py",
            "opacus/tests/poisson_test.py",
            "opacus/tests/schedulers",
        ],
    ),
    "e3nn": (
        "e3nn/e3nn",
        "2aa7f584",
        ["tests/o3/irreps_test.py", "tests/o3/rotation_test.py", "tests/nn/fc_test.py"],
    ),
    "pytorch-pfn-extras": (
        "pfnet/pytorch-pfn-extras",
        "8999d94",
        [
            "tests/pytorch_pfn_extras_tests/runtime_tests",
            "tests/pytorch_pfn_extras_tests/handler_tests",
            "tests/pytorch_pfn_extras_tests/nn_tests/modules_tests",
            "tests/pytorch_pfn_extras_tests/profiler_tests/test_record.py",
        ],
    ),
    "higher": (
        "facebookresearch/higher",
        "15a247a",
        ["tests/test_patch.py", "tests/test_optim.py"],
    ),
    "pytorch_optimizer": (
        "kozistr/pytorch_optimizer",
        "7a076d2f",
        ["tests/test_lr_schedulers.py", "tests/test_utils.py", "tests/test_loss_functions.py"],
    ),
    "torchinfo": ("TylerYep/torchinfo", "5c4164f", ["tests/torchinfo_test.py"]),
    "x-transformers": ("lucidrains/x-transformers", "9252ed7", ["tests/test_x_transformers.py"]),
    "vector-quantize": ("lucidrains/vector-quantize-pytorch", "0d7d1aa", ["tests"]),
    "captum": (
        "pytorch/captum",
        "faac0877",
        [
            "tests/attr/test_saliency.py",
            "tests/attr/test_input_x_gradient.py",
            "tests/attr/test_data_parallel.py",
            "tests/attr/test_deconvolution.py",
            "tests/attr/test_hook_removal.py",
        ],
    ),
    "kornia": (
        "kornia/kornia",
        "b4f5a78a13",
        ["tests/losses/test_dice.py", "tests/core"],
    ),
    "gpytorch": (
        "cornellius-gp/gpytorch",
        "7c4ec80f0f",
        ["test/kernels/test_rbf_kernel.py", "test/kernels/test_linear_kernel.py", "test/utils"],
    ),
    "lightly": (
        "lightly-ai/lightly",
        "e8d317fc",
        [
            "tests/loss/test_barlow_twins_loss.py",
            "tests/loss/test_dcl_loss.py",
            "tests/loss/test_dino_loss.py",
            "tests/loss/test_ntx_ent_loss.py",
        ],
    ),
    "segmentation_models": (
        "qubvel-org/segmentation_models.pytorch",
        "5006616",
        ["tests/test_losses.py", "tests/base"],
    ),
    "MONAI": (
        "Project-MONAI/MONAI",
        "d388d1c6fe",
        [
            "tests/losses/test_dice_loss.py",
            "tests/losses/test_focal_loss.py",
            "tests/metrics/test_compute_meandice.py",
            "tests/metrics/test_hausdorff_distance.py",
            "tests/inferers/test_sliding_window_inference.py",
        ],
    ),
    "pyg": (
        "pyg-team/pytorch_geometric",
        "5c6461b230",
        [
            "test/utils/test_scatter.py",
            "test/utils/test_softmax.py",
            "test/nn/conv/test_hetero_conv.py",
        ],
    ),
}


def outcomes(python: str, root: Path, tests: list[str], limit: int) -> tuple[dict[str, str], str]:
    """Outcome of each test by its name, none where none could be collected, and the last words."""
    report = root.parent / f"{root.name}.xml"
    # `-p no:cacheprovider` and a report outside: the copies differ by the rewrite alone.
    command = [python, "-m", "pytest", "-q", "-x", "--maxfail=200", *tests]
    command += ["-p", "no:cacheprovider", "-o", "addopts=", f"--junitxml={report}"]
    places = os.pathsep.join([str(root), str(root / "src")])
    environment = {**os.environ, "PYTHONPATH": places, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {}, f"no end after {limit} s"
    lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith(("E ", "ERROR", "ModuleNotFound"))]
    found = {}
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        kinds = [each.tag for each in case if each.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}::{case.get('name')}"] = kinds[0] if kinds else "passed"
    return found, " ".join((errors or lines or ["nothing"])[0].split())[:200]


def suite(name: str, mirrors: Path, folder: Path, python: str, limit: int) -> list[str]:
    """One row of the table."""
    repository, commit, tests = SUITES[name]
    mirror = mirrors / repository.replace("/", "+") / "repo"
    asked = ["git", "-C", str(mirror), "rev-parse", "--short=10", commit]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    before, after = (checkout(mirror, commit, folder / each / name) for each in ("before", "after"))
    found = scan([after], chip=chips.target(None), origin=chips.origin(), style=Style.AGNOSTIC)
    made = patches(found)
    for patch in made:
        patch.path.write_bytes(patch.after or b"")
    with ThreadPoolExecutor(2) as both:
        runs = [both.submit(outcomes, python, root, tests, limit) for root in (before, after)]
        (first, words), (second, _) = (run.result() for run in runs)
    counts = Counter(first.values())
    differ = [test for test in {**first, **second} if first.get(test) != second.get(test)]
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    said = f"{len(differ)} differ: {', '.join(sorted(differ)[:4])}" if differ else "the same"
    if not counts["passed"]:
        said = f"not run here: {words}"
    return [f"{repository} {commit}", " ".join(tests), str(len(made)), shown, said]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mirrors", type=Path, required=True)
    parser.add_argument("--suite", action="append", choices=list(SUITES))
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the suites")
    parser.add_argument("--limit", type=int, default=600, help="seconds for one run of a suite")
    options = parser.parse_args()
    print("| project | tests | files changed | before | after |")
    print("|---|---|---|---|---|")
    for name in options.suite or SUITES:
        with tempfile.TemporaryDirectory() as folder:
            row = suite(name, options.mirrors, Path(folder), options.python, options.limit)
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
