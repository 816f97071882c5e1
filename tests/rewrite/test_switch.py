"""Unchanged programs under the runtime switch: rewritten in memory, however they are started."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.cli import _switch
from joymigrate.rewrite.switch import plan
from tests.rewrite.projects import write

# A string that every style of start can show, without torch: the name of a variable.
SHOW = "NAME = 'CUDA_VISIBLE_DEVICES'\n"
OTHER = "ASCEND_RT_VISIBLE_DEVICES"


def run(
    folder: Path, *command: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / ".cache"), "PYTHONPATH": ""}
    return subprocess.run(
        [sys.executable, "-m", "joymigrate", "run", "-q", *options, "--", *command],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_script_and_its_modules_are_rewritten_and_the_files_stay(tmp_path: Path) -> None:
    files = {
        "lib/__init__.py": "",
        "lib/part.py": SHOW,
        "main.py": SHOW + "from lib.part import NAME as other\nprint(NAME, other)\n",
    }
    write(tmp_path, files)
    assert run(tmp_path, "python", "main.py").stdout.split() == [OTHER, OTHER]
    assert (tmp_path / "main.py").read_text() == files["main.py"]
    plain = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert plain.stdout.split() == ["CUDA_VISIBLE_DEVICES"] * 2


def test_a_script_sees_what_it_always_saw(tmp_path: Path) -> None:
    text = (
        SHOW + "import sys\nprint(__name__, __file__, sys.argv, sys.path[0], __package__)\n"
        "print('once')\nsys.exit(5)\n"
    )
    write(tmp_path, {"sub/main.py": text})
    done = run(tmp_path, "python", "sub/main.py", "a", "--b")
    first, once = done.stdout.splitlines()
    script = tmp_path / "sub" / "main.py"
    assert first == f"__main__ {script} {['sub/main.py', 'a', '--b']} {script.parent} None"
    assert once == "once"
    assert done.returncode == 5


def test_a_script_has_no_spec_and_keeps_its_docstring_and_future(tmp_path: Path) -> None:
    text = '"""Doc."""\nfrom __future__ import annotations\n' + SHOW
    text += "print(__doc__, __spec__, __package__)\ndef f(x: Unknown): return x\n"
    text += "import inspect\nprint(inspect.getsource(f).strip())\n1 / 0\n"
    write(tmp_path, {"main.py": text})
    done = run(tmp_path, "python", "main.py")
    assert done.stdout == "Doc. None None\ndef f(x: Unknown): return x\n"
    assert f'File "{tmp_path / "main.py"}", line 8, in <module>\n    1 / 0' in done.stderr


def test_a_script_that_does_not_parse_is_told_as_python_tells_it(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": SHOW + "x = (\n"})
    plain = subprocess.run(
        [sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False
    )
    done = run(tmp_path, "python", "main.py")
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)


def test_folders_with_spaces_chinese_names_and_links_are_no_obstacle(tmp_path: Path) -> None:
    write(tmp_path, {"程序 x/main.py": SHOW + "import sys\nprint(NAME, sys.path[0])\n"})
    (tmp_path / "link.py").symlink_to(tmp_path / "程序 x" / "main.py")
    expected = f"{OTHER} {tmp_path / '程序 x'}\n"
    assert run(tmp_path, "python", "程序 x/main.py").stdout == expected
    assert run(tmp_path, "python", "link.py").stdout == expected


def test_archives_and_commands_are_left_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", SHOW + "print(NAME)\n")
    assert run(tmp_path, "python", "app.pyz").stdout.strip() == "CUDA_VISIBLE_DEVICES"
    code = SHOW + "print(NAME)"
    assert run(tmp_path, "python", "-c", code).stdout.strip() == "CUDA_VISIBLE_DEVICES"


def test_a_signal_reaches_the_program_and_its_end_is_passed_on(tmp_path: Path) -> None:
    text = (
        "import os, signal\n" + SHOW + "signal.signal(signal.SIGTERM, lambda *a: exit(7))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\nsignal.pause()\n"
    )
    write(tmp_path, {"main.py": text, "killed.py": "import os\nos.kill(os.getpid(), 9)\n"})
    assert run(tmp_path, "python", "main.py").returncode == 7
    assert run(tmp_path, "python", "killed.py").returncode == 128 + 9


def test_a_failure_on_a_machine_without_the_chip_says_so(tmp_path: Path) -> None:
    chip = chips.target(None)
    node = tmp_path / "card0"
    there = replace(chip, launch={"device_nodes": [str(node)]})
    said = "\n".join(_switch.no_chip(there, ["python", "a b.py"]))
    assert f"there is no {node}" in said
    assert "joymigrate rehearse --migrate -- python 'a b.py'" in said
    node.touch()
    assert _switch.no_chip(there, ["python"]) == []
    assert _switch.no_chip(replace(chip, launch={}), ["python"]) == []


def test_a_failure_in_a_python_without_torch_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_switch, "find_spec", lambda name: None)
    chip = replace(chips.target(None), launch={"device_nodes": ["/nowhere"]})
    assert _switch.no_chip(chip, ["python", "a.py"]) == [
        "switch: this Python has no torch",
        "  help: pip install 'joymigrate[torch]'",
    ]
    assert "there is no /nowhere" in _switch.no_chip(chip, ["sh", "a.sh"])[0]


def test_tracebacks_name_the_users_file_and_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"main.py": "import os\n" + SHOW + "\n\ndef f():\n    raise KeyError(NAME)\n\nf()\n"},
    )
    done = run(tmp_path, "python", "main.py")
    assert f'File "{tmp_path / "main.py"}", line 6, in f' in done.stderr
    assert f"KeyError: '{OTHER}'" in done.stderr


def test_a_module_started_with_m_is_rewritten(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/go.py": SHOW + "print(NAME, __name__)\n"})
    assert run(tmp_path, "python", "-m", "pkg.go").stdout.split() == [OTHER, "__main__"]


def test_a_script_with_a_shebang_is_rewritten(tmp_path: Path) -> None:
    write(tmp_path, {"go": "#!/usr/bin/env python\n" + SHOW + "print(NAME)\n"})
    (tmp_path / "go").chmod(stat.S_IRWXU)
    write(tmp_path, {"pyproject.toml": ""})
    assert run(tmp_path, "./go").stdout.split() == [OTHER]


def test_children_and_spawned_workers_are_rewritten(tmp_path: Path) -> None:
    text = (
        "import multiprocessing, subprocess, sys\n"
        + SHOW
        + "def work(queue):\n    queue.put(NAME)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n    queue = context.Queue()\n"
        "    child = context.Process(target=work, args=(queue,))\n    child.start()\n"
        "    print(queue.get())\n    child.join()\n"
        "    done = subprocess.run([sys.executable, 'other.py'], capture_output=True, text=True)\n"
        "    print(done.stdout)\n"
    )
    write(tmp_path, {"main.py": text, "other.py": SHOW + "print(NAME)\n"})
    assert run(tmp_path, "python", "main.py").stdout.split() == [OTHER, OTHER]


def test_pytest_collects_rewritten_tests_and_leaves_no_trace(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": SHOW + "def test_it():\n    assert NAME[:6] == 'ASCEND'\n"})
    done = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    plain = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed" in plain.stdout


def test_a_file_written_while_the_program_runs_is_rewritten(tmp_path: Path) -> None:
    text = "open('made.py', 'w').write(\"\"\"" + SHOW + '""")\nimport made\nprint(made.NAME)\n'
    write(tmp_path, {"main.py": "import os\n" + text})
    done = run(tmp_path, "python", "main.py")
    assert done.stdout.split() == [OTHER], done.stderr


def test_an_installed_package_is_rewritten_only_when_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"env/site-packages/dep/__init__.py": SHOW, "main.py": "import dep\nprint(dep.NAME)\n"},
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "env/site-packages")}
    base = [sys.executable, "-m", "joymigrate", "run", "-q"]

    def out(*options: str) -> str:
        done = subprocess.run(
            [*base, *options, "--", "python", "main.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    assert out() == "CUDA_VISIBLE_DEVICES"
    assert out("--follow-imports", "dep") == OTHER


def test_edits_never_add_lines(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch.profiler import profile, record_function, ProfilerActivity\n"
        "x = torch.zeros(1).cuda()\nprint(ProfilerActivity.CUDA)\n"
    )
    write(tmp_path, {"main.py": text})
    made = plan.make([str(tmp_path / "main.py")], chip=chips.target(None), origin=chips.origin())
    (file,) = made["files"].values()
    assert all("\n" not in edit[2] for edit in file["edits"])


def test_the_vendors_shim_is_asked_for_by_its_switch(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "import os\nprint(os.environ.get('TORCH_TRANSFER_TO_NPU'))\n"})
    assert run(tmp_path, "python", "main.py", options=("--switch", "vendor")).stdout == "1\n"


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["train.py", "--device", "cuda:1"], "here it is --device npu:1"),
        (["train.py", "--backend=nccl"], "here it is --backend hccl"),
    ],
)
def test_device_names_on_the_command_line_are_pointed_out(command: list[str], hint: str) -> None:
    (said,) = plan.hints(command, chips.origin(), chips.target(None))
    assert hint in said
