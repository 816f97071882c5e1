"""Build `rules/ascend/ops/kernel_models.csv`: which models of the chip lack a kernel.

    python -m scripts.build_ascend_kernel_models CHECKOUTS

CHECKOUTS holds clones of the vendor's operator repositories. Two of their statements have to agree:
the table of products in the kernel's document, and the models that the operator's definition names.
Neither is enough: a document has a cross for convolutions on a model that trains with them, and
operators that were rewritten for a new model are defined for that one alone, while the others go on
with kernels that are not published. Facts only are kept: the kernel, the models, the document.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from joymigrate.data import rules_root

REPOSITORIES = ("ops-math", "ops-nn", "ops-transformer", "ops-cv")
# A product family as the documents call it, and the models of the chip in it.
FAMILIES = (
    (re.compile(r"Atlas A2 训练系列产品"), "910B"),
    (re.compile(r"Atlas A3 训练系列产品"), "910_93"),
    (re.compile(r"Atlas 200I/500 A2"), "310B"),
    (re.compile(r">Atlas 推理系列产品|\| *Atlas 推理系列产品"), "310P"),
    (re.compile(r">Atlas 训练系列产品|\| *Atlas 训练系列产品"), "910"),
)
CONFIGURED = {  # a model as the definitions call it
    "ascend910b": "910B", "ascend910_93": "910_93", "ascend310b": "310B", "ascend310p": "310P",
    "ascend910": "910",
}  # fmt: skip
MAIN = "910B"  # a definition without it is that of a rewrite: it says nothing about older models
ADDED = re.compile(r"\bOP_ADD\(\s*(\w+)")
CONFIG = re.compile(r"\.AddConfig\(\s*([^,)]+)")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
HEADING = "产品支持情况"
CROSSES = ("×", "x", "X", "不支持")
COLUMNS = ("kernel", "models", "source")


def main() -> None:
    """Read every document and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", type=Path)
    root = parser.parse_args().checkouts
    rows: dict[str, tuple[set[str], str]] = {}
    defined = definitions([root / repository for repository in REPOSITORIES])
    for repository in REPOSITORIES:
        for path, lacking in documents(root / repository):
            source = f"hicann/{repository} {commit_of(root / repository)}:{path}"
            for kernel in kernels_of(path):
                lacking &= unconfigured(kernel, defined)
                before = rows.get(kernel)
                # Two documents of one kernel: only what both say.
                rows[kernel] = (lacking & before[0] if before else lacking, source)
    target = rules_root() / "ascend" / "ops" / "kernel_models.csv"
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for kernel, (lacking, source) in sorted(rows.items()):
            if lacking:
                writer.writerow((kernel, " ".join(sorted(lacking)), source))
    print(f"{len(rows)} kernels have a table of products: {target}")


def documents(repository: Path) -> Iterator[tuple[str, set[str]]]:
    """Every document of a kernel with a table of products: its path, the models with a cross."""
    for path in sorted(repository.rglob("docs/**/aclnn*.md")):
        relative = path.relative_to(repository).as_posix()
        if relative.startswith("experimental") or "/experimental/" in relative:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found = lacking_in(text)
        if found is not None:
            yield relative, found


def definitions(repositories: list[Path]) -> dict[str, set[str] | None]:
    """The models that each operator is defined for; None where the code does not name them."""
    found: dict[str, set[str] | None] = {}
    for repository in repositories:
        for path in sorted(repository.rglob("op_host/**/*_def.cpp")):
            relative = path.relative_to(repository).as_posix()
            if "experimental" in relative or "/tests/" in relative:
                continue
            text = COMMENT.sub(" ", path.read_text(encoding="utf-8", errors="replace"))
            named = [word.strip() for word in CONFIG.findall(text)]
            literal = bool(named) and all(word.startswith('"') for word in named)
            models = {CONFIGURED[w] for w in (n.strip('"') for n in named) if w in CONFIGURED}
            for operator in ADDED.findall(text):
                before = found.get(operator, set())
                known = literal and before is not None
                found[operator] = models | (before or set()) if known else None
    return found


def unconfigured(kernel: str, defined: dict[str, set[str] | None]) -> set[str]:
    """The models that no operator behind a kernel is defined for; none where nobody knows."""
    name = re.sub(r"V\d+$", "", kernel.removeprefix("aclnn").removeprefix("Inplace"))
    family = [one for one in defined if re.fullmatch(rf"{name}(V\d+)?", one)]
    if not family:
        return set()
    configured: set[str] = set()
    for one in family:
        models = defined[one]
        if models is None:
            return set()
        configured |= models
    lacking = set(CONFIGURED.values()) - configured
    return lacking if MAIN in configured else lacking & {MAIN}


def lacking_in(text: str) -> set[str] | None:
    """The models with a cross in the table below the heading; None where there is no table."""
    _, heading, rest = text.partition(HEADING)
    if not heading:
        return None
    section = re.split(r"\n#+ ", rest, maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.strip().startswith("|")]
    lacking, seen = set(), 0
    for line in lines:
        model = next((name for family, name in FAMILIES if family.search(line)), None)
        if model is None:
            continue
        seen += 1
        if line.strip().strip("|").split("|")[-1].strip() in CROSSES:
            lacking.add(model)
    return lacking if seen else None


def kernels_of(path: str) -> list[str]:
    """The kernels that a document is about, from its name: `aclnnAcos&aclnnInplaceAcos.md`."""
    return re.findall(r"aclnn\w+", Path(path).stem)


def commit_of(repository: Path) -> str:
    """The short commit of a clone."""
    command = ["git", "-C", str(repository), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
