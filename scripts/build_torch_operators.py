"""Build `rules/common/ops/torch_operators.txt` from the torch that is installed.

    python -m scripts.build_torch_operators

What `joymigrate oplist` and a coverage need of torch's own table, for environments without torch:
its schemas and dispatch keys, in the layout of `native_functions.yaml`, without the rest.
"""

from __future__ import annotations

from joymigrate.files import replace_file
from joymigrate.profile.oplist import aten

KEYS = ("dispatch", "structured_delegate", "autogen")


def reduced(text: str) -> str:
    """The lines of a `native_functions.yaml` that `aten.parse` reads."""
    kept: list[str] = []
    inside = False
    for raw in text.splitlines():
        line = raw.split(" #")[0].rstrip()
        key = aten.KEY.fullmatch(line)
        if line.startswith("- func:"):
            inside = False
        elif key:
            inside = key["key"] == "dispatch"
        body = inside and aten.INNER.fullmatch(line)
        if line.startswith("- func:") or body or (key and key["key"] in KEYS):
            kept.append(line)
    return "\n".join(kept) + "\n"


def main() -> None:
    """Write the file."""
    source = aten.find_torchgen()
    version = aten.version_beside(source)
    head = (
        f"# torch {version}\n"
        "# Schemas and dispatch keys of torch's native_functions.yaml (BSD-3-Clause, the PyTorch\n"
        "# authors), as `python -m scripts.build_torch_operators` left them. Not made by hand.\n"
    )
    text = head + reduced(source.read_text(encoding="utf-8"))
    replace_file(aten.shipped_path(), text.encode())
    print(f"{aten.shipped_path()}: torch {version}, {len(text) // 1024} KiB")


if __name__ == "__main__":
    main()
