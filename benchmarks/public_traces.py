"""Coverage of every trace in a folder: is anything called missing that is not?

    python benchmarks/public_traces.py FOLDER [--to ascend] [--version 2.13]

Public traces to put there: `tests/data` of facebookresearch/HolisticTraceAnalysis (f4d0062),
`tb_plugin/samples` of pytorch/kineto (the commit before 94979607), and the unit tests' data of
Ascend/msprof-analyze. Files that hold no operators are named with the reason. Exits 1 where an
operator of torch is called missing or falling back; operators of other libraries are `unknown`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.profile import readers
from joymigrate.profile.coverage import cover
from joymigrate.profile.oplist import SupportStatus, of


def main() -> int:
    """Print one line per trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", default="ascend")
    parser.add_argument("--version")
    arguments = parser.parse_args()
    oplist = of(arguments.to, arguments.version)
    gaps = 0
    print(
        f"| trace | kind | operators | calls | gaps on {oplist.chip.name} {oplist.version} "
        "| other libraries | time on the chip | CPU s |\n|---|---|---|---|---|---|---|---|"
    )
    for path in sorted(p for p in arguments.folder.rglob("*") if p.is_file()):
        began = time.process_time()
        try:
            trace = readers.read(path)
            found = cover([trace], oplist)
        except JoyError as error:
            print(f"| {path.name} | - | {error.what} | | | | | |")
            continue
        seconds = time.process_time() - began
        own = [o for o in found.gaps() if o.op.startswith("aten::")]
        gaps += len(own)
        others = sum(1 for o in found.gaps() if o.status is SupportStatus.UNKNOWN) - sum(
            1 for o in own if o.status is SupportStatus.UNKNOWN
        )
        time_share = "-" if found.share.time is None else f"{100 * found.share.time:.1f} %"
        calls = sum(o.calls for o in found.ops)
        said = ", ".join(f"{o.name} ({o.status.value})" for o in own) or "0"
        print(f"| {path.name} | {trace.kind} | {len(found.ops)} | {calls:,} | {said} | {others} "
              f"| {time_share} | {seconds:.2f} |")  # fmt: skip
    return int(gaps > 0)


if __name__ == "__main__":
    sys.exit(main())
