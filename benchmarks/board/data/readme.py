"""The n-th Python example of a README as a program: readme.py N [CALL].

CALL is the line that uses what the example only builds, from another example of the page.
`readme.py` puts it on the device as its reader would: an example with `.cuda()` is taken as it is;
another gets torch's default device, `cuda`. `readme_cpu.py` is the same without either.
"""

import re
import sys
from pathlib import Path

BLOCK = re.compile(r"```(?:python|py)\n(.*?)```", re.DOTALL)
CUDA = re.compile(r"\.cuda\(\)|\.to\(['\"]cuda['\"]\)")


def main(number: str, call: str = "") -> None:
    """Write both programs."""
    page = next(one for one in Path.cwd().iterdir() if one.name.lower() == "readme.md")
    text = BLOCK.findall(page.read_text(encoding="utf-8"))[int(number)]
    text += f"{call}\n" if call else ""
    seeded = "import torch\ntorch.manual_seed(0)\n"
    before = "" if CUDA.search(text) else 'torch.set_default_device("cuda")\n'
    Path("readme.py").write_text(f"{seeded}{before}{text}", encoding="utf-8")
    Path("readme_cpu.py").write_text(f"{seeded}{CUDA.sub('', text)}", encoding="utf-8")


main(*sys.argv[1:])
