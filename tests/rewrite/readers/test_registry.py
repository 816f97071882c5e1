"""Which reader takes which file."""

from __future__ import annotations

import pytest

from joymigrate.rewrite import readers


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("run.sh", "shell"),
        ("a/job.slurm", "shell"),
        ("environment.yml", "yaml"),
        ("charts/templates/job.yaml", "yaml"),
        ("pyproject.toml", "toml"),
        ("Pipfile", "toml"),
        ("setup.cfg", "ini"),
        ("hostfile", "ini"),
        (".env", "ini"),
        ("requirements.txt", "requirements"),
        ("requirements/dev.txt", "requirements"),
        ("docker/requirements_gpu.txt", "requirements"),
        ("constraints.txt", "requirements"),
        ("Dockerfile", "dockerfile"),
        ("docker/Dockerfile.cu121", "dockerfile"),
        ("Dockerfile-cu114", "dockerfile"),
        ("Containerfile", "dockerfile"),
        ("Makefile", "makefile"),
        ("a.ipynb", "notebook"),
        ("ds_config.json", "json"),
        (".devcontainer/devcontainer.json", "json"),
        ("csrc/a.cu", "kernels"),
        ("csrc/a.cuh", "kernels"),
        ("README.md", None),
        ("notes.txt", None),
        ("a.png", None),
        ("LICENSE", None),
    ],
)
def test_a_name_leads_to_its_reader(path: str, kind: str | None) -> None:
    folder, _, name = path.rpartition("/")
    found = readers.kind_of_name(name, folder)
    assert found == kind
    assert found is None or readers.readers()[found].__name__.rpartition(".")[2] == kind


def test_a_script_without_an_ending_is_known_by_its_first_line() -> None:
    assert readers.kind_of_head(b"#!/usr/bin/env bash\n") == "shell"
    assert readers.kind_of_head(b"#!/usr/bin/perl\n") is None


def test_every_reader_says_what_it_reads() -> None:
    for name, reader in readers.readers().items():
        assert reader.PATTERNS, name
        assert callable(reader.read), name
