"""Do other engines' own argument parsers take what `serve --engine` starts them with?

    python -m benchmarks.engine_flags --vllm /venv/bin/python --sglang FOLDER

`--vllm`: an interpreter that has vLLM (its parser is vllm-ascend's, too). `--sglang`: a folder with
the unpacked wheel of SGLang, read by the same interpreter; modules that only SGLang imports and
nobody installed are stood in for, since nothing but its parser runs. xLLM is a program for the
device and MindIE reads a file: neither has a parser that runs here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from joymigrate.run.serve.engine import launch

VLLM = """
import importlib, sys
for place in ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args"):
    try:
        make = importlib.import_module(place).make_arg_parser
        break
    except ImportError:
        continue
from vllm.utils.argparse_utils import FlexibleArgumentParser
import vllm
parser = make(FlexibleArgumentParser())
words, name = sys.argv[2:], "vllm " + vllm.__version__
"""
SGLANG = """
import argparse, importlib.abc, importlib.machinery, sys, types
from unittest.mock import MagicMock
folder = sys.argv.pop(1)
sys.path.insert(0, folder)
class Absent(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        return MagicMock(name=name)
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    made = set()
    def find_spec(self, name, path=None, target=None):
        top, frame = name.split(".")[0], sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if top in ("sglang", "torch", "transformers"):
            return None
        if not frame.f_code.co_filename.startswith(folder) and top not in self.made:
            return None
        self.made.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Absent(spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.append(Finder())
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
words, name = sys.argv[1:], f"sglang, without {sorted(Finder.made)}"
"""
TELL = """
found = vars(parser.parse_args(words))
print(name, {key: value for key, value in found.items() if value != parser.get_default(key)})
"""


def words(name: str) -> list[str]:
    """The arguments that `serve --engine NAME` starts the engine with."""
    engine = launch.find_launcher(name)
    wish = {"{model}": "/m/model", "{name}": "m", "{port}": "8123"}
    given = []
    for word in engine.words:
        for place, value in wish.items():
            word = word.replace(place, value)
        given.append(word)
    chosen = {"dtype": "bfloat16", "max_model_len": "4096", "tensor_parallel": "2"}
    for what, value in chosen.items():
        option = engine.options.get(what)
        given += [option, value] if option is not None else []
    return given


def ask(python: str, program: str, *given: str) -> bool:
    """Let a parser read the arguments; what it took goes to the output."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [python, "-c", program + TELL, *given]
    done = subprocess.run(line, env=alone, capture_output=True, text=True, check=False)
    print((done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1])
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--sglang", type=Path)
    given = parser.parse_args()
    good = [ask(given.vllm, VLLM, *words(name)) for name in ("vllm", "vllm-ascend")]
    if given.sglang is not None:
        folder = str(given.sglang.resolve())
        good.append(ask(given.vllm, SGLANG, folder, *words("sglang")))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
