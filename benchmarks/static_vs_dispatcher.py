"""Is the shipped operator list what torch's dispatcher really holds?

Needs torch_npu and a C compiler.

    python benchmarks/static_vs_dispatcher.py [--wheels DIR]

Compares the shipped list of the installed version, and the list read live from the installed
package, with the dispatcher on the simulated chip; with `--wheels` also each shipped version with
the wheel of that version in the folder. Exits 1 below 99.6 % or where a difference has no reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from joymigrate.profile.oplist import compare, from_wheel, of

LIMIT = 0.996


def dump() -> Any:
    """The dispatcher on the simulated chip."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "dispatch.json"
        ours = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--", "python", "-m"]
        module = ["joymigrate.profile.oplist.dispatcher", "--package", "torch_npu", "-o", str(out)]
        subprocess.run([*ours, *module], check=True, stderr=subprocess.DEVNULL)
        return json.loads(out.read_text(encoding="utf-8"))


def main() -> int:
    """Print one line per comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--wheels", type=Path)
    arguments = parser.parse_args()
    real = dump()
    version = ".".join(real["version"].split(".")[:2])
    failed, wheels, wrong = False, 0, 0
    print("| list | torch's overloads equal | generated | the chip's own |\n|---|---|---|---|")
    for name, oplist in (("shipped", of("ascend", version)), ("live", from_wheel("ascend"))):
        found = compare.validate(oplist, real)
        share = f"{found.equal} of {found.overloads} ({100 * found.share:.2f} %)"
        generated = f"{found.generated_equal} of {found.generated}"
        print(f"| {name} {version} | {share} | {generated} | {found.own_equal} of {found.own} |")
        for one in found.differences:
            print(f"  {one.name}: listed {one.listed}, dispatcher {one.dispatcher} ({one.reason})")
        failed |= found.share < LIMIT or not all(one.reason for one in found.differences)
    for wheel in sorted(arguments.wheels.glob("*.whl")) if arguments.wheels else ():
        read = from_wheel("ascend", wheel)
        changes = compare.diff(of("ascend", read.version), read)
        worse = [c for c in changes if c.after is not None]
        print(f"wheel {read.version}: {len(worse)} differences with the shipped list", flush=True)
        failed |= bool(worse)
        wheels, wrong = wheels + 1, wrong + bool(worse)
    if wheels:
        print(f"{wheels} wheels, {wrong} with differences")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
