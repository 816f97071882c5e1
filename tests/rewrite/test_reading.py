"""A scan reads each Python file once, and finds the same however its lines end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.rewrite.project import scan

SITE = "import torch\nx = torch.zeros(3).cuda()\n"


def sites(root: Path) -> list[tuple[str, int, int]]:
    found = scan([root], chip=chips.target("ascend"), origin=chips.origin(), jobs=1)
    return [(one.path, one.line, one.column) for one in found.findings if one.rule == "JM110"]


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(SITE)
    (tmp_path / "b.py").write_text(f"from a import x\n{SITE}")
    # What `pick` gets is decided by the other file: both are asked again.
    (tmp_path / "c.py").write_text("def pick(name):\n    return x.to(name)\n")
    (tmp_path / "d.py").write_text("from c import pick\npick('cuda')\n")
    read: Counter[str] = Counter()
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        read[path.name] += 1
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert [path for path, _, _ in sites(tmp_path)] == ["a.py", "b.py"]
    assert {read[name] for name in ("a.py", "b.py", "c.py", "d.py")} == {1}


@pytest.mark.parametrize(
    "data",
    [
        SITE.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + SITE.encode(),
        f"# \ufffd\n{SITE}".encode(),
        b"# -*- coding: latin-1 -*-\n# \xe4\n" + SITE.encode(),
    ],
    ids=["crlf", "bom", "replacement", "latin-1"],
)
def test_any_bytes_are_scanned_as_they_stand(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(data)
    (path, line, _), *rest = sites(tmp_path)
    assert (path, rest) == ("a.py", [])
    assert b".cuda()" in data.splitlines()[line - 1]
