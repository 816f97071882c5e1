"""Every kind of mistake in a chip folder is found and named by file and key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joymigrate.chips.validate import validate

GOOD = """
name: acme
title: Acme AI card
device: acm
backend: accl
api: {names: names.txt}
"""
NAMES = "version 1.0 x\n[torch.acm]\nStream\nAcmGraph\n"


@pytest.fixture
def chip(tmp_path: Path) -> Path:
    (tmp_path / "chip.yaml").write_text(GOOD)
    (tmp_path / "names.txt").write_text(NAMES)
    return tmp_path


def found(chip: Path) -> list[str]:
    return [str(problem).replace(f"{chip}/", "") for problem in validate(chip)]


def test_a_small_chip_is_valid(chip: Path) -> None:
    assert found(chip) == []


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("name: Acme Card", "chip.yaml: name: 'Acme Card' is not a name"),
        ("name: ascend", "'ascend' is taken by ascend (built in)"),
        ("aliases: [gpu]", "'gpu' is taken by nvidia (built in)"),
        ("default: true", "default: ascend has it already"),
        ("device: a.b", "device: 'a.b' is not an identifier"),
        ("backend: 'my ccl'", "backend: 'my ccl' is not an identifier"),
        ("package: torch-acm", "package: 'torch-acm' is not a dotted name"),
        ("schema: joymigrate.chip/2", "the schema is 'joymigrate.chip/2'"),
        ("api: {name: names.txt}", "api.name: unknown key. Did you mean 'names'?"),
        ("api: {names: other.txt}", "other.txt: the name list is missing"),
        ("api: {names: names.txt, version: '3.0'}", "api.version: '3.0' is not a version"),
        ("api: {names: names.txt, renamed: {CUDAGraph: AcmGraf}}", "torch.acm.AcmGraf is in no"),
        ("api: {renamed: {CUDAGraf: AcmGraph}}", "nvidia has no torch.cuda.CUDAGraf"),
        ("api: {names: names.txt, absent: {Stream: {note: x}}}", "torch.acm.Stream exists after"),
        ("api: {absent: {nvtx: {}}}", "api.absent.nvtx: says neither what takes its place"),
        ("api: {absent: {nvtx: {tier: unsafe, note: x}}}", "tier unsafe needs `to`"),
        ("api: {moved: {torch.x y: torch.z}}", "'torch.x y' is not a dotted name"),
        (
            "api: {moved: {torch.version.cuda: {to: torch.amp.nothing}}}",
            "torch.amp.nothing is in no version of the name list",
        ),
        (
            "api: {renamed: {random.seed: {to: Stream, one_way: true}}}",
            "a way without a return can't be safe",
        ),
        ("environment: {map: {nccl_x: ACCL_X}}", "'nccl_x' is not a variable's name"),
        ("environment: {visible: ACM}", "environment: unknown key 'visible'"),
        ("launch: {resource_patterns: acme.com/card}", "launch.resource_patterns: expected a list"),
        ("launch: {resource: [acme.com/card]}", "launch.resource: expected text"),
        ("launch: {note: one, two words}", "launch.two words: has no value; quote a text"),
        ("skus: [{name: x, memory_gib: -4, source: y}]", "skus.x.memory_gib: expected a positive"),
        ("skus: [{name: x, memory_gib: 4}]", "skus.x: figures need a source"),
        ("skus: [{name: x, dtypes: [bf16]}]", "skus.x: unknown dtype 'bf16'"),
        ("skus: [{name: x}, {name: x}]", "skus.x: there are two of that name"),
        ("versions: [{torch: new}]", "versions[0].torch: 'new' is not a version"),
        ("versions: [{package: '1'}]", "versions[0]: expected a mapping with `torch`"),
        ("shim: {import: acme}", "shim: needs a line to import or an environment switch"),
        ("shim: {line: import x, gap: []}", "shim.gap: unknown key. Did you mean 'gaps'?"),
        ("shim: {line: import x, gaps: [{note: x}]}", "shim.gaps[0]: expected a mapping with"),
        ("shim: {line: import x, covers: [JM9999]}", "shim.covers: there is no rule 'JM9999'"),
        ("shim: {line: import x, gaps: [{what: x, until: now}]}", "until 'now' is not a version"),
        ("shim: {line: import x, gaps: x}", "shim.gaps: expected a list, got 'x'"),
        ("kernels: {replacements: {nms: {}}}", "kernels.replacements.nms: says neither"),
    ],
)
def test_a_wrong_key_of_the_chip_is_found(chip: Path, key: str, what: str) -> None:
    name = key.partition(":")[0]
    kept = [line for line in GOOD.splitlines() if not line.startswith(f"{name}:")]
    (chip / "chip.yaml").write_text("\n".join([*kept, key, ""]))
    assert any(what in line for line in found(chip)), found(chip)


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        ("imports.yaml", "imports: {flash_attn: {}}", "imports.flash_attn: says neither"),
        ("imports.yaml", "imports: {flash-attn: {note: x}}", "is not a module's dotted name"),
        ("imports.yaml", "attributes: {tf32: {note: x}}", "attributes.tf32: is not KEYWORD=VALUE"),
        ("imports.yaml", "imports: {a: {note: x, date: 1 May}}", "date '1 May' is not YYYY-MM-DD"),
        ("packages.yaml", "packages: {a: {to: b}}", "a replacement needs a date and a source"),
        ("packages.yaml", "packages: {a: {versions: new}}", "versions 'new' is not a range"),
        (
            "packages.yaml",
            "packages: {a: {aarch64: maybe, note: x}}",
            "'aarch64' takes true or false",
        ),
        ("packages.yaml", "packages: {a: text}", "packages.a: expected keys with values"),
        ("packages.yaml", "packages: {a: {not: x}}", "unknown key 'not'. Did you mean 'note'?"),
        ("overrides.yaml", "JM9999: {tier: safe}", "JM9999: there is no such rule"),
        ("overrides.yaml", "- JM101", "expected keys with values"),
        ("overrides.yaml", "JM101: {tier: sure}", "JM101.tier: 'tier' does not know 'sure'"),
        (
            "overrides.yaml",
            "JM101: {teir: safe}",
            "JM101.teir: unknown key 'teir'. Did you mean 'tier'",
        ),
        ("tolerance.yaml", "a: [", "tolerance.yaml:2: not valid YAML"),
        ("names.txt", "version 1.0 x\n[torch.other]\nStream\n", "has no section [torch.acm]"),
        ("names.txt", "what is this\n", "names.txt:1: not a line of a name list"),
    ],
)
def test_a_wrong_file_beside_it_is_found(chip: Path, file: str, text: str, what: str) -> None:
    (chip / file).write_text(text)
    assert any(what in line for line in found(chip)), found(chip)


def test_all_mistakes_are_named_at_once(chip: Path) -> None:
    (chip / "chip.yaml").write_text(
        GOOD + "versions: [{torch: new}]\nskus: [{name: x, memory_gib: 0}]"
    )
    (chip / "overrides.yaml").write_text("JM9999: {tier: safe}")
    assert len(found(chip)) == 4


def test_a_folder_without_a_chip_says_so(tmp_path: Path) -> None:
    assert found(tmp_path) == ["chip.yaml: cannot read the chip file: No such file or directory"]


JUNK = st.sampled_from(
    [None, 3, -1.5, True, "", "text", [], ["a", 3], {}, {"a": None}, {3: 4}, [[1]], "ü\u4e2d"]
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every node of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*at, key)
        if isinstance(item, dict | list):
            yield from places(item, (*at, key))


SMALL = """
name: acme
title: Acme AI card
device: acm
backend: accl
module: torch.acm
aliases: [a]
cpu_fallback: true
api:
  names: names.txt
  version: "1.0"
  tensor: {cuda: acm}
  renamed: {CUDAGraph: AcmGraph, Event: {to: Stream, tier: unsafe, also: [x]}}
  absent: {nvtx: {note: x}}
  moved: {torch.version.cuda: {to: torch.version.acm, tier: unsafe}}
environment: {visible_devices: A, map: {NCCL_A: {to: A_B}}, keep: {C: x}, report: {D: {note: x}}}
tools: {nvidia-smi: {to: acm-smi, tier: unsafe}}
launch: {resource: a.b/c, resource_patterns: [a.b/c], docker: x}
skus: [{name: A1, memory_gib: 4, dtypes: [bfloat16], peak_tflops: {bfloat16: 3}, source: s}]
versions: [{torch: "2.1", package: "1.0"}]
shim: {line: import x, gaps: [{what: x}]}
kernels: {replacements: {nms: {to: torch.acm.Stream}}, triton: {package: t}}
notes: [x]
"""
SMALL_PATHS = sorted(places(yaml.safe_load(SMALL)), key=str)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120, deadline=None
)
@given(path=st.sampled_from(SMALL_PATHS), junk=JUNK)
def test_junk_anywhere_is_a_problem_or_fine_but_never_a_crash(
    chip: Path, path: tuple[Any, ...], junk: Any
) -> None:
    document = yaml.safe_load(SMALL)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    (chip / "chip.yaml").write_text(yaml.safe_dump(document, allow_unicode=True))
    for problem in validate(chip):
        assert problem.what
