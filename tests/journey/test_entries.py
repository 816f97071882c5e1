"""Programs that a project says how to start, with small settings; and who is asked which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.cli._entry import choose_entry
from joymigrate.errors import JoyError
from joymigrate.journey.entries import EntryCandidate, find_entries

TRAIN = (
    "import argparse\nimport torch\n"
    "p = argparse.ArgumentParser()\n"
    "p.add_argument('--epochs', type=int, default=20)\n"
    "p.add_argument('--batch-size', '-b', type=int, default=64)\n"
    "p.add_argument('--lr', default=0.1)\n"
    "if __name__ == '__main__':\n    p.parse_args()\n"
)


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        for end in ("py", "md", "cfg", "toml"):
            name = name.replace(f"_{end}", f".{end}")
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def commands(folder: Path) -> list[str]:
    return [one.command for one in find_entries(folder)]


def test_a_readme_says_how_to_train_and_the_options_are_made_small(tmp_path: Path) -> None:
    readme = (
        "# Digits\n\n```bash\npip install -r requirements.txt\npython download.py\n"
        "python train.py --epochs 20 \\\n    --lr 0.05  # long\n```\n"
    )
    found = find_entries(project(tmp_path, README_md=readme, train_py=TRAIN, download_py="x"))
    assert found[0] == EntryCandidate(
        "python train.py --epochs 1 --lr 0.05 --batch-size 4",
        "README.md:6",
        ("--epochs 1 (20)", "--batch-size 4 (64)"),
    )
    assert "python download.py" not in commands(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("README.md", "Run `python main.py` first.\n", "python main.py"),
        ("README.md", "    $ python other.py\n$ python main.py --x 1\n", "python main.py --x 1"),
        ("Makefile", "train:\n\t@CUDA_VISIBLE_DEVICES=0 python main.py\n",
         "env CUDA_VISIBLE_DEVICES=0 python main.py"),
        ("run.sh", "#!/bin/sh\nset -e\npython main.py --lr $LR\n", "bash run.sh"),
        (
            ".vscode/launch.json",
            json.dumps({"configurations": [
                {"program": "${workspaceFolder}/main.py", "args": ["--x", "1"]}]}),
            "python main.py --x 1",
        ),
        (
            "run.ipynb",
            json.dumps({"cells": [{"source": ["import os\n", "!python main.py --y 2"]}]}),
            "python main.py --y 2",
        ),
        ("README.md", "```\ntorchrun --nproc_per_node 2 main.py\n```\n",
         "torchrun --nproc_per_node 2 main.py"),
    ],
)  # fmt: skip
def test_where_it_is_said(tmp_path: Path, name: str, text: str, command: str) -> None:
    (tmp_path / "main.py").write_text("import torch\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert commands(tmp_path) == [command]


@pytest.mark.parametrize(
    "line",
    [
        "python missing.py",  # not in the project
        "python main.py --data <path>",  # to be filled in
        "python main.py --data /path/to/data",
        "python main.py | tee log.txt",  # for a shell
        "python -m pytest",
        "python setup.py install",
        "The python main.py program trains.",
    ],
)
def test_what_starts_no_program_of_the_project(tmp_path: Path, line: str) -> None:
    (tmp_path / "main.py").write_text("import torch\n")
    (tmp_path / "README.md").write_text(f"```\n{line}\n```\n")
    assert commands(tmp_path) == []


def test_a_file_that_starts_itself_is_one_and_training_comes_before_evaluation(
    tmp_path: Path,
) -> None:
    readme = "```\npython eval.py\npython train.py\n```\n"
    main = "import torch\nif __name__ == '__main__':\n    pass\n"
    project(tmp_path, README_md=readme, eval_py=main, train_py=main, tools__zoo_py=main)
    assert commands(tmp_path) == ["python train.py", "python tools/zoo.py", "python eval.py"]


def test_a_setting_that_is_small_stays(tmp_path: Path) -> None:
    small = TRAIN.replace("20", "1").replace("64", "2")
    project(tmp_path, README_md="```\npython train.py\n```\n", train_py=small)
    assert find_entries(tmp_path)[0] == EntryCandidate("python train.py", "README.md:2")


def test_elsewhere_than_on_a_terminal_the_candidates_are_listed(tmp_path: Path) -> None:
    project(tmp_path, README_md="```\npython train.py\n```\n", train_py=TRAIN)
    with pytest.raises(JoyError) as told:
        choose_entry(tmp_path, ask=None)
    assert "no program is named" in told.value.what
    assert "--entry 'python train.py --epochs 1 --batch-size 4'  (README.md:2" in told.value.help


@pytest.mark.parametrize(
    ("answer", "entry"), [("", "python train.py"), ("2", "python eval.py"), ("n", "")]
)
def test_on_a_terminal_it_is_asked_once(tmp_path: Path, answer: str, entry: str) -> None:
    main = "import torch\nif __name__ == '__main__':\n    pass\n"
    project(tmp_path, train_py=main, eval_py=main)
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return answer

    assert choose_entry(tmp_path, ask=ask) == entry
    assert len(asked) == 1


def test_a_project_without_a_program_is_asked_nothing(tmp_path: Path) -> None:
    assert choose_entry(project(tmp_path, lib_py="x = 1\n"), ask=None) == ""


def test_an_answer_that_is_none_of_them_is_refused(tmp_path: Path) -> None:
    main = "import torch\nif __name__ == '__main__':\n    pass\n"
    with pytest.raises(JoyError):
        choose_entry(project(tmp_path, train_py=main), ask=lambda question: "9")


def test_an_exported_notebook_is_a_program_and_a_library_is_none(tmp_path: Path) -> None:
    loop = "import torch\nfor step in range(3):\n    print(step)\n"
    project(tmp_path, gan_py=loop, model_py="import torch\nclass Net: ...\n")
    assert commands(tmp_path) == ["python gan.py"]


def test_the_programs_that_a_package_declares(tmp_path: Path) -> None:
    declared = (
        "[project.scripts]\nfit = 'digits.fit:run'\nhelp = 'elsewhere.cli:main'\n"
        "[tool.poetry.scripts]\nlearn = 'digits.learn:main'\n"
    )
    (tmp_path / "pyproject.toml").write_text(declared)
    function = "def run():\n    pass\n"
    made = project(tmp_path, src__digits__learn_py=TRAIN, src__digits__fit_py=function)
    found = [one for one in find_entries(made) if one.source.startswith("pyproject.toml")]
    assert [(one.source, one.command) for one in found] == [
        (
            "pyproject.toml (fit)",
            "env PYTHONPATH=src python -c 'import digits.fit as m; m.run()'",
        ),
        (
            "pyproject.toml (learn)",
            "env PYTHONPATH=src python -m digits.learn --epochs 1 --batch-size 4",
        ),
    ]


@pytest.mark.parametrize(
    "files",
    [
        {"setup_cfg": "[options]\npackage_dir =\n    = lib/code\n[options.entry_points]\n"
                      "console_scripts =\n    learn = digits.learn:main [extra]\n"},
        {"setup_cfg": "[options]\npackage_dir =\n    digits = lib/code/digits\n",
         "pyproject_toml": "[project.scripts]\nlearn = 'digits.learn:main'\n"},
        {"pyproject_toml": "[project.scripts]\nlearn = 'digits.learn:main'\n"
                           "[tool.setuptools.package-dir]\n'' = 'lib/code'\n"},
    ],
)  # fmt: skip
def test_modules_lie_where_the_package_says(tmp_path: Path, files: dict[str, str]) -> None:
    made = project(tmp_path, lib__code__digits__learn_py=TRAIN, **files)
    named = [one for one in find_entries(made) if "(learn)" in one.source]
    assert [one.command for one in named] == [
        "env PYTHONPATH=lib/code python -m digits.learn --epochs 1 --batch-size 4"
    ]


def test_a_setup_that_cannot_be_read_declares_nothing(tmp_path: Path) -> None:
    broken = {"setup_cfg": "package_dir = src\n", "pyproject_toml": "[tool.setuptools\n"}
    assert commands(project(tmp_path, **broken)) == []


@pytest.mark.parametrize(
    "text", ["tool = 'x'", "tool.setuptools = 'x'", "[[project]]", "project.scripts = ['x']"]
)
def test_a_declaration_of_another_form_declares_nothing(tmp_path: Path, text: str) -> None:
    assert commands(project(tmp_path, pyproject_toml=text, train_py=TRAIN)) != []


def test_a_line_of_python_in_a_readme_is_no_program(tmp_path: Path) -> None:
    readme = "```\npython -c 'import torch; print(torch.cuda.is_available())'\n```\n"
    assert commands(project(tmp_path, README_md=readme)) == []
