"""What is compiled of the checkouts, and how: found by trying, on GCC 12 and x86-64.

Three layers: the base that every operator's host code stands on (`opbase`, parts of `metadef` and
`ge`), our stand-ins for what needs a chip, and the operators' `op_api` and shape functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.run.rehearse.host_checks.checkouts import Checkouts

STAND_INS = Path(__file__).parent / "stand_ins"
FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-O0",
    "-w",
    "-pipe",
    "-fno-access-control",
    "-Dgoogle=ascend_private",
)
BASE_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-O0",
    "-w",
    "-fno-access-control",
    "-Dgoogle=ascend_private",
    "-DLOG_CPP",
)
LEFT_OUT = re.compile(r"/(tests?|experimental|examples?|stub|docs)/")
ENTRY = re.compile(r"\b(aclnn\w+)GetWorkspaceSize\s*\(")
ASKED_SHAPE = re.compile(r"INFER_SHAPE\(\s*(\w+)")
GIVEN_SHAPE = re.compile(r"IMPL_OP(?:_INFERSHAPE)?\(\s*(\w+)\s*\)")
# Kernels whose shapes the published code leaves to a newer one of the same arguments.
OTHER_SHAPE = {"MatMulV2": "MatMulV3", "BatchMatMulV2": "BatchMatMulV3"}
PRECOMPILED = """
#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>
#include "opdev/platform.h"
#include "opdev/op_executor.h"
#include "opdev/op_dfx.h"
#include "opdev/op_log.h"
#include "opdev/op_def.h"
#include "opdev/common_types.h"
#include "opdev/make_op_executor.h"
#include "opdev/shape_utils.h"
#include "opdev/data_type_utils.h"
#include "opdev/format_utils.h"
#include "opdev/tensor_view_utils.h"
"""
INCLUDES = """
    opbase: include include/aclnnop include/nnopbase include/nnopbase/opdev include/op_common
        pkg_inc src/nnopbase src/nnopbase/common src/nnopbase/common/inc src/nnopbase/composite_op
        src/nnopbase/individual_op
    runtime: include/external include/external/acl pkg_inc pkg_inc/runtime
        pkg_inc/aicpu_sched/common pkg_inc/base src/inc/runtime include include/dfx
    metadef: inc/external inc pkg_inc .
    ops-math: common/inc/external common/inc .
    ops-nn: common/inc common/include common/stub/op_api .
    ge: inc/graph_metadef inc/graph_metadef/external inc/external inc
        graph_metadef/third_party/transformer/inc
    runtime: src/queue_schedule/common
"""
OWN_INCLUDES = {  # a repository's own headers come before those of the others
    "ops-math": ("common/inc/external", "common/inc", "."),
    "ops-nn": ("common/inc", "."),
    "ops-transformer": (
        *(".", "common/include", "common/include/external", "common/stub/op_api"),
        *("mc2/common/inc", "mc2/3rd", "mc2"),
    ),
    "ops-cv": (".", "common/inc", "common/include", "common/inc/external", "common/stub/op_api"),
}
UTILITIES = {  # a header that some files use and do not include
    "ops-math": "common/inc/external/aclnn_util.h",
    "ops-nn": "common/inc/op_api/aclnn_util.h",
    "ops-transformer": "common/include/external/aclnn_util.h",
    "ops-cv": "common/inc/op_api/aclnn_util.h",
}
# Headers that some files of shape functions use and do not include.
SHAPE_HEADERS = ("-include", "log/log.h", "-include", "util/shape_util.h")
METADATA = [
    "metadef/base/type/*.cc",
    "metadef/base/utils/*.cc",
    "metadef/base/runtime/*.cc",
    "metadef/base/registry/*.cc",
    "metadef/base/context_builder/*.cc",
    "metadef/base/any_value.cc",
    "ge/graph_metadef/third_party/transformer/src/**/*.c*",
    "runtime/src/platform/*.cpp",
]
METADATA_INCLUDES = [
    "metadef/base",
    "metadef/base/common/plugin",
    "metadef/base/registry",
    "metadef/base/context_builder",
    "runtime/src/platform",
    "runtime/include/dfx/base",
    "runtime/pkg_inc/platform",
    "runtime/pkg_inc/mmpa",
    "runtime/src/mmpa/inc",
    "runtime/include/external/acl/error_codes",
]


@dataclass(frozen=True, slots=True)
class Unit:
    """One file to compile. `ways` are argument lists to try in turn; `layer` says what for."""

    source: Path
    layer: str  # base, or a repository of operators
    name: str  # of the object file
    ways: tuple[tuple[str, ...], ...]
    needed: bool = False  # without it nothing can be linked


def general_includes(root: Path) -> list[str]:
    """The folders of headers that everything is compiled with."""
    found = [f"-I{STAND_INS}"]
    repository = ""
    for word in INCLUDES.split():
        if word.endswith(":"):
            repository = word[:-1]
        else:
            found.append(f"-I{root / repository / word}")
    return found


def units(checkouts: Checkouts, called: set[str], precompiled: Path) -> Iterator[Unit]:
    """Everything to compile for the kernels in `called`."""
    root = checkouts.root
    general = general_includes(root)
    for path in sorted(STAND_INS.glob("*.c*")):
        engine = f"-I{root / 'opbase/src/nnopbase/composite_op/aclnn_engine'}"
        way: tuple[str, ...] = ("-x", "c", "-fPIC", "-O0", "-w")
        if path.suffix == ".cpp":
            way = (*BASE_FLAGS, *general, engine)
        yield Unit(path, "base", f"stand_in@{path.stem}", (way,), needed=True)
    core = root / "opbase/src/nnopbase"
    for part in ("common", "composite_op", "tls_guardian"):
        for path in sorted((core / part).rglob("*.cpp")):
            if path.name != "platform.cpp":  # a stand-in chooses the chip
                way = (*BASE_FLAGS, *general, f"-I{path.parent}")
                yield Unit(path, "base", name_of(path, root), (way,))
    more = ("-DFUNC_VISIBILITY", "-DMETADEF_VISIBILITY_DEFAULT")
    places = [f"-I{root / place}" for place in METADATA_INCLUDES]
    for pattern in METADATA:
        for path in sorted(root.glob(pattern)):
            way = (*BASE_FLAGS, *more, *places, *general, f"-I{path.parent}")
            yield Unit(path, "base", name_of(path, root), (way,))
    sources = [(repo, p) for repo in checkouts.operators for p in operator_sources(root / repo)]
    chosen = [(r, p) for r, p in sources if is_called(p, called)]
    for repository, path in shape_sources(checkouts, [path for _, path in chosen]):
        way = shape_way(root, repository, path, general)
        yield Unit(path, repository, name_of(path, root), (way, (*way, *SHAPE_HEADERS)))
    for repository, path in chosen:
        yield operator_unit(checkouts, repository, path, general, precompiled)


def shape_way(root: Path, repository: str, path: Path, general: Sequence[str]) -> tuple[str, ...]:
    """How a file of shape functions is compiled: with the log macros of the operators' side."""
    common = root / "opbase/include/op_common"
    places = [
        *(root / repository / place for place in OWN_INCLUDES[repository]),
        *(common, common / "op_host", common / "op_host/util"),
        *(root / "metadef/inc/external/exe_graph", root / repository / "common/inc/op_host"),
        *path.parents[:3],
        root / repository / "common/inc/op_api",
    ]
    return (*FLAGS, *(f"-I{place}" for place in places), *general)


def operator_sources(repository: Path) -> list[Path]:
    """The files of operators' host code."""
    found = repository.rglob("op_api/*.cpp")
    return sorted(
        p for p in found if not LEFT_OUT.search(f"/{p.relative_to(repository).as_posix()}")
    )


def is_called(path: Path, called: set[str]) -> bool:
    """Whether a file belongs to a kernel that is called, or is shared by several."""
    entries = set(ENTRY.findall(path.read_text(encoding="utf-8", errors="replace")))
    return not path.name.startswith("aclnn_") or not entries or bool(entries & called)


def shape_sources(checkouts: Checkouts, chosen: Iterable[Path]) -> list[tuple[str, Path]]:
    """The files with the shape functions that the chosen host code asks for, and those shared."""
    asked: set[str] = set()
    for path in chosen:
        asked |= set(ASKED_SHAPE.findall(path.read_text(encoding="utf-8", errors="replace")))
    asked |= {OTHER_SHAPE[name] for name in asked & OTHER_SHAPE.keys()}
    found = []
    for repository in checkouts.operators:
        folder = checkouts.root / repository
        for path in sorted(folder.rglob("*infershape*.cpp")):
            if LEFT_OUT.search("/" + path.relative_to(folder).as_posix()):
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            if not GIVEN_SHAPE.search(text) or asked & set(GIVEN_SHAPE.findall(text)):
                found.append((repository, path))
    return found


def operator_unit(
    checkouts: Checkouts, repository: str, path: Path, general: list[str], precompiled: Path
) -> Unit:
    """How one file of host code is compiled: with the precompiled header, without, with a header
    that it forgot."""
    root = checkouts.root
    own = [f"-I{root / repository / place}" for place in OWN_INCLUDES[repository]]
    if repository == "ops-transformer" and "asc-devkit" in checkouts.versions:
        own += [f"-I{root / 'asc-devkit/include/adv_api/hccl/internal/hcomm' / p}" for p in
                ("", "pkg_inc")]  # fmt: skip
    neighbours = [f"-I{root / r / p}" for r in ("ops-transformer",) for p in OWN_INCLUDES[r]
                  if r in checkouts.versions]  # fmt: skip
    folders = [*own, *general, *neighbours, f"-I{path.parent}"]
    op_host = root / "opbase/include/op_common/op_host"
    plain = (
        *FLAGS, *folders, "-DOP_LOG_LIBOPAPI_ONLY", f"-I{op_host}", f"-I{op_host / 'util'}",
        f"-I{path.parent.parent}",
    )  # fmt: skip
    utilities = root / repository / UTILITIES[repository]
    ways = [(*FLAGS, "-include", str(precompiled), *folders), plain]
    if utilities.is_file():
        ways.append((*plain, "-include", str(utilities)))
    return Unit(path, repository, name_of(path, root), tuple(ways))


def name_of(path: Path, root: Path) -> str:
    """The name of a file's object: its path in one word."""
    return path.relative_to(root).with_suffix("").as_posix().replace("/", "@")
