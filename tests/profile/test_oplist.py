"""A chip's operators: the shipped lists, wheels, lists of other chips, and the real dispatcher."""

from __future__ import annotations

import json
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.chips import all_chips, rules_root
from joymigrate.chips.names import inside, span_of
from joymigrate.errors import JoyError
from joymigrate.evidence import GRADES
from joymigrate.profile.oplist import SupportStatus, from_wheel, of
from joymigrate.profile.oplist import entries as lists
from joymigrate.profile.oplist.aten import find_torchgen, parse, read_table, shipped_path
from joymigrate.profile.oplist.compare import diff, validate
from joymigrate.profile.oplist.dispatcher import kind
from joymigrate.profile.oplist.lists import chip_of
from joymigrate.profile.oplist.reports import read_reports

LIST = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"


def test_the_scan_of_torchs_table_agrees_with_a_yaml_parser() -> None:
    table = read_table()
    items = yaml.load(find_torchgen().read_bytes(), Loader=yaml.CSafeLoader)
    for item in items:
        op = table.ops[item["func"].partition("(")[0]]
        keys = {key.strip() for keys in item.get("dispatch") or {} for key in keys.split(",")}
        assert set(op.keys) == keys, op.name
        assert op.delegate == item.get("structured_delegate"), op.name
    assert len(items) == sum(not op.generated for op in table.ops.values())


def test_a_table_without_operators_is_refused() -> None:
    with pytest.raises(JoyError, match="no operators"):
        parse("nothing: here\n", "2.13", "some.yaml")


@pytest.mark.parametrize(
    ("op", "overload", "status"),
    [
        ("aten::mm", "", SupportStatus.NATIVE),
        ("aten::add", "Tensor", SupportStatus.NATIVE),
        ("aten::lgamma", "", SupportStatus.CPU_FALLBACK),
        ("aten::scatter", "src", SupportStatus.NATIVE),
        ("aten::scatter", "reduce", SupportStatus.CPU_FALLBACK),
        ("aten::linear", "", SupportStatus.COMPOSITE),
        ("aten::t", "", SupportStatus.COMPOSITE),
        ("npu::npu_rms_norm", "", SupportStatus.NATIVE),
        ("aten::_coalesce", "", SupportStatus.CPU_FALLBACK),
        ("fbgemm::permute_2D_sparse_data", "", SupportStatus.UNKNOWN),
        ("aten::no_such_operator", "", SupportStatus.UNKNOWN),
    ],
)
def test_the_default_chips_list_knows(op: str, overload: str, status: SupportStatus) -> None:
    assert of("ascend", "2.13").status(op, overload).status is status


def test_a_structured_operator_is_computed_by_its_out_variant() -> None:
    assert "aten::lgamma.out" in of("ascend").status("aten::lgamma", "").note


def test_without_an_overload_the_best_one_counts_and_the_note_says_so() -> None:
    support = of("ascend").status("aten::scatter")
    assert support.status is SupportStatus.NATIVE
    assert "no overload recorded" in support.note
    assert "aten::scatter.reduce" in support.note


def test_a_dtype_that_no_kernel_takes_is_missing_with_the_one_to_cast_to() -> None:
    support = of("ascend").status("aten::mm", "", dtype="float64")
    assert support.status is SupportStatus.MISSING
    assert "float64 is not among the documented dtypes" in support.note
    assert support.alternative.startswith("cast to float32")
    assert of("ascend").status("aten::mm", "", dtype="bfloat16").status is SupportStatus.NATIVE


def test_a_deprecated_operator_names_its_replacement() -> None:
    support = of("ascend").status("npu::npu_silu", "")
    assert support.status is SupportStatus.NATIVE
    assert "deprecated" in support.note
    assert support.alternative == "torch.nn.functional.silu"


def test_a_chip_without_a_cpu_fallback_says_missing() -> None:
    oplist = of("musa")
    statuses = {support.status for *_, support in oplist.rows()}
    assert SupportStatus.MISSING in statuses
    assert SupportStatus.CPU_FALLBACK not in statuses
    assert of("cambricon").status("aten::lgamma", "").status is SupportStatus.CPU_FALLBACK


@pytest.mark.parametrize("version", [f"2.{minor}" for minor in range(1, 16)])
def test_every_version_has_a_source_a_commit_and_a_date(version: str) -> None:
    release = of("ascend", version).release
    assert release.source
    assert release.commit
    assert release.date


def test_a_version_nobody_has_read_is_refused_with_the_known_ones() -> None:
    with pytest.raises(JoyError) as raised:
        of("ascend", "1.11")
    assert "2.13" in str(raised.value)


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ("2.6", "2.6"), ("2.6.0", "2.6"), ("2.6.0.post3", "2.6.0.post3"), ("2.6.1", "2.6.0.post5"),
        ("2.6.0.post4", "2.6.0.post3"), ("2.7.1.post10", "2.7.1.post10"), ("2.13.0+cpu", "2.13"),
    ],
)  # fmt: skip
def test_a_release_is_itself_or_the_newest_one_listed_before(asked: str, listed: str) -> None:
    assert of("ascend", asked).version == listed


def test_a_later_release_has_operators_that_the_first_lacks() -> None:
    name = "npu::_npu_dtype_cast"
    assert of("ascend", "2.6").status(name, "").status is not SupportStatus.NATIVE
    assert of("ascend", "2.6.0.post5").status(name, "").status is SupportStatus.NATIVE
    assert of("ascend", "2.6").entries.later("2.6") == "2.6.0.post5"
    assert of("ascend", "2.13").entries.later("2.13") is None


RELEASES = ("2.1", "2.1.0.post3", "2.1.0.post10", "2.5", "2.6", "2.6.0.post3", "2.6.1", "2.10")


@given(st.sets(st.sampled_from(RELEASES), min_size=1))
def test_a_span_text_stands_for_the_releases_that_it_was_made_from(present: set[str]) -> None:
    text = span_of(present, RELEASES)
    parts = text.split(",") if text else []
    found = {v for part in parts for v in inside(part, RELEASES, "here")}
    assert found == present or (text == "" and present == set(RELEASES))


def test_newer_versions_have_more_kernels() -> None:
    changes = diff(of("ascend", "2.1"), of("ascend", "2.13"))
    gained = [c for c in changes if c.gained]
    assert len(gained) > len(changes) - len(gained)
    assert "npu::npu_fusion_attention_v3" in {c.name for c in gained}


def test_all_custom_operators_of_the_wheel_are_listed() -> None:
    names = {n for n in of("ascend", "2.13").names() if n.startswith("npu::")}
    assert len(names) >= 419


def test_at_least_900_overloads_carry_dtypes() -> None:
    rows = of("ascend").rows()
    assert sum(bool(s.dtypes) for op, _, s in rows if op.startswith("aten::")) >= 900


def wheel(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "torch_npu-2.13.0-cp311-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(LIST, text)
        archive.writestr("torch_npu/version.py", "__version__ = '2.13.0'\ngit_version = 'abc123'\n")
    return path


def test_a_wheel_is_read_without_import(tmp_path: Path) -> None:
    text = """
backend: NPU
supported:
- mm
- func: lgamma.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  impl_ns: op_api
- {func: _coalesce(Tensor self) -> Tensor, sparse: op_api}
quant:
- {func: int_repr(Tensor self) -> Tensor, impl_ns: acl_op}
custom:
- func: npu_new_thing(Tensor self) -> Tensor
"""
    oplist = from_wheel("ascend", wheel(tmp_path, text))
    assert oplist.version == "2.13.0"
    assert oplist.release.commit == "abc123"
    assert oplist.status("aten::mm", "").status is SupportStatus.NATIVE
    assert (
        oplist.status("aten::lgamma", "").status is SupportStatus.NATIVE
    )  # through its out variant
    assert oplist.status("aten::bmm", "").status is SupportStatus.CPU_FALLBACK
    assert oplist.status("aten::_coalesce", "").status is SupportStatus.CPU_FALLBACK
    assert oplist.status("aten::int_repr", "").status is SupportStatus.CPU_FALLBACK
    assert oplist.status("npu::npu_new_thing", "").status is SupportStatus.NATIVE


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_text("no zip")
    with pytest.raises(JoyError, match="not a wheel"):
        from_wheel("ascend", path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other/file", "")
    with pytest.raises(JoyError, match="the wheel holds no"):
        from_wheel("ascend", path)


@pytest.mark.skipif(PathFinder.find_spec("torch_npu") is None, reason="torch_npu not installed")
def test_the_installed_package_and_the_shipped_list_agree() -> None:
    installed = from_wheel("ascend")
    changes = diff(of("ascend", installed.version), installed)
    assert all(c.after is None for c in changes)  # only what the package registers in code
    assert len(changes) <= 6


PLUGIN = """\
schema: joymigrate.operators/1
meta: {chip: acme, torch: "2.7", source: acme docs, commit: abc, fallback: error}
ops:
  aten::mm: {dtypes: [float16, float32], note: fast}
  aten::add:
  aten::lgamma: {status: cpu_fallback, alternative: acme.lgamma}
  acme::fused_thing: {alt: nothing}
"""


def test_one_yaml_file_is_a_list_for_a_chip(tmp_path: Path) -> None:
    path = tmp_path / "acme.yaml"
    path.write_text(PLUGIN)
    oplist = of("musa", file=path)
    assert (oplist.version, oplist.release.commit) == ("2.7", "abc")
    assert oplist.status("aten::mm", "", dtype="float64").status is SupportStatus.MISSING
    assert (
        oplist.status("aten::add", "Tensor").status is SupportStatus.NATIVE
    )  # a bare name: every one
    assert oplist.status("aten::add", "Scalar").status is SupportStatus.NATIVE
    assert oplist.status("aten::lgamma", "").status is SupportStatus.CPU_FALLBACK
    assert oplist.status("aten::bmm", "").status is SupportStatus.MISSING
    assert oplist.status("acme::fused_thing", "").status is SupportStatus.NATIVE
    assert oplist.status("other::thing", "").status is SupportStatus.UNKNOWN


def test_a_csv_alone_is_a_list(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_text("op,overload,dtypes\nadd,Tensor,float32 float16\naten::mm,,\n")
    oplist = of("cambricon", file=path)
    assert oplist.status("aten::add", "Tensor").dtypes == ("float32", "float16")
    assert oplist.status("aten::add", "Scalar").status is not SupportStatus.NATIVE
    assert oplist.status("aten::mm", "").status is SupportStatus.NATIVE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ops: [aten::mm]\nfallbak: cpu\n", "unknown key 'fallbak'"),
        ("meta: {fallback: gpu}\nops: [aten::mm]\n", "'fallback' does not know 'gpu'"),
        ("ops: {aten::mm: {status: nativ}}\n", "Did you mean 'native'"),
        ("ops: {aten::mm: {dtype: [float16]}}\n", "Did you mean 'dtypes'"),
        ("ops: {'aten mm': }\n", "is not an operator"),
        ("ops: {aten::mm: {dtypes: [FLOAT16]}}\n", "is not a dtype"),
        ("ops: {aten::mm: {versions: new}}\n", "not a range of versions"),
        ("schema: joymigrate.operators/9\nops: [aten::mm]\n", "expected joymigrate.operators/1"),
        ("versions: {2.10.x: {}}\nops: [aten::mm]\n", "is not a torch version"),
        ("default: '2.9'\nops: [aten::mm]\n", "'default' names no version"),
        ("table: gone.csv\n", "there is no file 'gone.csv'"),
        ("meta: {chip: acme}\n", "needs `ops` or `table`"),
        ("- aten::mm\n", "expected keys with values"),
        ("ops: [aten::mm\n", "not valid YAML"),
    ],
)
def test_a_mistake_in_a_list_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ops.yaml"
    path.write_text(text)
    with pytest.raises(JoyError) as raised:
        of("musa", file=path)
    assert said in str(raised.value)
    assert "ops.yaml" in str(raised.value)


def test_a_chip_without_a_list_says_what_to_write() -> None:
    with pytest.raises(JoyError) as raised:
        of("metax")
    assert "docs/how-to/oplist.md" in str(raised.value)


def test_a_folder_with_a_chip_and_its_list_is_a_chip(tmp_path: Path) -> None:
    folder = tmp_path / "acme"
    (folder / "ops").mkdir(parents=True)
    (folder / "chip.yaml").write_text(
        "name: acme\ntitle: Acme card\ndevice: acm\nbackend: accl\ncpu_fallback: true\n"
    )
    (folder / "ops" / "operators.yaml").write_text("ops: [aten::mm]\n")
    oplist = of(chip_of(str(folder)))
    assert oplist.status("aten::bmm", "").status is SupportStatus.CPU_FALLBACK


def test_every_shipped_list_reads_and_names_its_sources() -> None:
    folders = ((chip, chip.folder / "ops") for chip in all_chips().values())
    found = [chip for chip, ops in folders if any((ops / name).is_file() for name in lists.FILES)]
    assert len(found) >= 3
    for chip in found:
        oplist = of(chip)
        assert all(release.source for release in oplist.entries.releases.values())
        assert sum(s.status is SupportStatus.NATIVE for *_, s in oplist.rows()) > 700


def test_alternatives_name_calls_that_exist_and_are_not_deprecated() -> None:
    text = (rules_root() / "ascend" / "ops" / "alternatives.yaml").read_text(encoding="utf-8")
    oplist = of("ascend")
    for word in {w.strip('",()=:;') for w in text.replace("torch_npu.", " torch_npu.").split()}:
        if word.startswith("torch_npu.npu_"):
            support = oplist.status(f"npu::{word.removeprefix('torch_npu.')}")
            assert support.status is SupportStatus.NATIVE, word
            assert "deprecated" not in support.note, word


def test_kernels_that_a_rehearsal_lays_over_the_package_are_looked_through() -> None:
    ours = "PrivateUse1: registered at {}:68 :: (none) [ boxed ]"
    from joymigrate.profile.oplist import dispatcher

    mine = ours.format(Path(dispatcher.OURS) / "run" / "x.py")
    vendor = "PrivateUse1 (inactive): registered at RegisterNPU.cpp:1 :: (Tensor _0) -> Tensor _0"
    functional = "CompositeExplicitAutogradNonFunctional[alias]: registered at x.cpp:2 :: (none)"
    assert kind([mine, vendor], "PrivateUse1") == "kernel"
    assert kind([mine], "PrivateUse1") == "none"
    assert kind([mine, functional], "PrivateUse1") == "delegated"
    assert kind(["CompositeImplicitAutograd[alias]: x"], "PrivateUse1") == "composite"


def test_a_validation_names_each_difference_with_a_reason() -> None:
    oplist = of("ascend")
    real = {}
    for name in oplist.names():
        support = oplist.resolver.support(name)
        assert support is not None
        kinds = {SupportStatus.NATIVE: "kernel", SupportStatus.COMPOSITE: "composite"}
        real[name] = kinds.get(support.status, "none")
    real["aten::mm"] = "none"
    real["npu::not_in_the_list"] = "kernel"
    found = validate(oplist, {"ops": real, "torch": "2.13.0"})
    assert found.overloads - found.equal == 1
    assert {d.name: d.listed for d in found.differences} == {
        "aten::mm": "native",
        "npu::not_in_the_list": "absent",
    }
    assert all(d.reason for d in found.differences)


def test_dtypes_of_the_shipped_table_are_torchs_names() -> None:
    torch = pytest.importorskip("torch")
    known = {
        str(v).removeprefix("torch.") for v in vars(torch).values() if isinstance(v, torch.dtype)
    }
    other = {"int4", "hifloat8", "float4_e2m1", "float4_e1m2", "float8_e8m0"}
    for *_, support in of("ascend").rows():
        assert set(support.dtypes) <= known | other, support


def test_json_of_a_list_is_plain() -> None:
    from joymigrate.report.oplist import document

    oplist = of("ascend")
    data = json.loads(json.dumps(document(oplist, list(oplist.rows()))))
    assert data["schema"] == "joymigrate.oplist/1"
    assert {"op", "overload", "status", "dtypes", "note", "source"} <= set(data["ops"][0])
    assert data["provenance"]["commit"] == "c798c6532a0d"


def test_the_table_that_comes_along_says_the_same_as_torch_s_own() -> None:
    own = parse(find_torchgen().read_text(encoding="utf-8"), "", "")
    along = read_table(shipped_path())
    if along.version == read_table().version:
        assert along.ops == own.ops
    assert along.source.startswith(f"torch {along.version} native_functions.yaml")


def test_without_torch_the_table_that_comes_along_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_torchgen() == shipped_path()


def test_public_reports_agree_with_the_list_or_say_why_not() -> None:
    compared = 0
    for chip in ("ascend", "cambricon", "musa"):
        known = of(chip).entries
        assert known.reports is not None
        for row in read_reports(known.reports):
            if row.version and row.version not in known.releases:
                continue  # older than the list
            op = row.op if "::" in row.op else f"aten::{row.op}"
            found = of(chip, row.version or None).status(op)
            assert (found.status.value == row.said) is not bool(row.differs), row
            assert (row.source in found.note) is bool(row.differs), row
            assert row.grade in GRADES
            compared += 1
    assert compared >= 30
