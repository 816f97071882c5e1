"""Name lists: which names exist in which version."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.chips.names import NameList, expand, parse, span_of
from joymigrate.errors import JoyError

VERSIONS = ("2.1", "2.2", "2.9", "2.10", "2.11")

TEXT = """
# comment
version 2.9 torch-acme 2.9.0 wheel
version 2.10 torch-acme 2.10.0 wheel
version 2.1 torch-acme 2.1.0 wheel

[torch.acme]
Stream
Pool 2.10-
old -2.1
gap 2.1,2.10
mark.push
[torch_acme.optim] 2.10
Fused
"""


@pytest.fixture
def listed(tmp_path: Path) -> NameList:
    path = tmp_path / "names.txt"
    path.write_text(TEXT)
    return parse(path)


def test_a_name_without_a_range_exists_in_every_version(listed: NameList) -> None:
    assert listed.names("torch.acme", "2.1") == {"Stream", "old", "gap", "mark.push"}
    assert listed.names("torch.acme", "2.9") == {"Stream", "mark.push"}
    assert listed.names("torch.acme", "2.10") == {"Stream", "Pool", "gap", "mark.push"}


def test_versions_compare_as_numbers(listed: NameList) -> None:
    assert listed.newest() == "2.10"


def test_a_section_may_be_known_for_some_versions_only(listed: NameList) -> None:
    assert listed.knows("torch_acme.optim", "2.10")
    assert not listed.knows("torch_acme.optim", "2.9")


def test_post_releases_and_patches_belong_to_their_version(listed: NameList) -> None:
    assert listed.pick("2.9.1.post2+cpu") == "2.9"
    assert listed.pick(None) == "2.10"
    assert listed.pick(None, "2.9") == "2.9"


def test_an_unlisted_version_is_an_error_that_names_the_listed_ones(listed: NameList) -> None:
    with pytest.raises(JoyError, match=r"no names are known for version 3\.0") as caught:
        listed.pick("3.0")
    assert caught.value.help == "known versions: 2.1, 2.9, 2.10"


def test_an_attribute_of_a_listed_name_is_unknown_not_absent(listed: NameList) -> None:
    assert listed.has("torch.acme", "Stream.wait", "2.9") is None
    assert listed.has("torch.acme", "mark.pop", "2.9") is False
    assert listed.has("torch.acme", "nothing", "2.9") is False


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("two words here", "not a line of a name list"),
        ("name 2.x", "not a line of a name list"),
        ("name 2.1-2.2-2.3", "not a range of versions"),
        ("name -", "not a range of versions"),
        ("version 2.3 late", "come before the first section"),
    ],
)
def test_a_wrong_line_is_named_by_number(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "names.txt"
    path.write_text(f"version 2.1 x\n[torch.acme]\n{line}\n")
    with pytest.raises(JoyError, match=what) as caught:
        parse(path)
    assert caught.value.where == f"{path}:3"


def test_a_list_without_versions_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("[torch.acme]\n")
    with pytest.raises(JoyError, match="needs a `version` line"):
        parse(path)


@given(st.sets(st.sampled_from(VERSIONS), min_size=1))
def test_a_span_says_exactly_its_versions(present: set[str]) -> None:
    span = span_of(present, VERSIONS)
    assert expand(span or None, VERSIONS, {}, "here") == present
