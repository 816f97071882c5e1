"""action.yml, ci/gitlab.yml and ci/Dockerfile: their steps run here on a project with two tests.

One test of the sample project trains with an operator that the chip has no kernel for; the other
wants float64, which the chip does not have. Only the installation is replaced: the environment of
the tests has everything.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import pages

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "tests" / "samples" / "ci_project"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
GITLAB = [*yaml.safe_load_all((ROOT / "ci" / "gitlab.yml").read_text(encoding="utf-8"))]


@dataclass(slots=True)
class Job:
    """A run of the action in a workspace, as GitHub would run it."""

    workspace: Path
    inputs: dict[str, str]
    outputs: dict[str, str]

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run one `run:` step with its environment; fills in what it outputs."""
        step = STEPS[name]
        told = {key: self.filled(str(value)) for key, value in step.get("env", {}).items()}
        files = {key: self.workspace / f".{key.lower()}" for key in ("OUTPUT", "STEP_SUMMARY")}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.workspace / self.filled(step["working-directory"]),
            env=surroundings() | told | {f"GITHUB_{key}": str(path) for key, path in files.items()},
            capture_output=True,
            text=True,
            check=False,
        )
        if files["OUTPUT"].is_file():
            lines = files["OUTPUT"].read_text().splitlines()
            self.outputs |= dict(line.split("=", 1) for line in lines)
        return done

    def filled(self, text: str) -> str:
        """`${{ … }}` as GitHub fills it."""
        known = {f"inputs.{key}": value for key, value in self.inputs.items()}
        known |= {f"steps.rehearse.outputs.{key}": value for key, value in self.outputs.items()}
        known["github.workspace"] = str(self.workspace)
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: known[found[1]], text)


def surroundings() -> dict[str, str]:
    beside = str(Path(sys.executable).parent)
    path = f"{beside}{os.pathsep}{os.environ['PATH']}"
    return pages.environment() | {"PATH": path, "PYTHONPATH": str(ROOT)}


def job(workspace: Path, **inputs: str) -> Job:
    shutil.copytree(SAMPLE, workspace / "project")
    given = {key: value.get("default", "") for key, value in ACTION["inputs"].items()}
    return Job(workspace, given | {"working-directory": "project"} | inputs, {})


def test_the_action_is_well_formed() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert [key for key, value in ACTION["inputs"].items() if value.get("required")] == ["command"]
    for item in ACTION["inputs"].values():
        assert item["description"]
    for step in STEPS.values():
        assert ("uses" in step) != ("run" in step)
        assert "run" not in step or step["shell"] == "bash"
        # An input inside a script would be code of whoever wrote it: they come by environment.
        assert "${{" not in step.get("run", "")
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == {*ACTION["inputs"]}


def test_the_action_installs_this_checkout_with_pinned_torch() -> None:
    script = STEPS["Install"]["run"]
    assert '"torch==$TORCH"' in script
    assert '"$SOURCE[ascend]"' in script
    assert STEPS["Install"]["env"]["SOURCE"] == "${{ github.action_path }}"
    pinned = (ROOT / "constraints.txt").read_text()
    assert f"torch=={ACTION['inputs']['torch-version']['default']}" in pinned


@pytest.mark.slow
@pytest.mark.compiler
def test_a_test_that_fails_on_the_chip_fails_the_job_and_is_annotated(tmp_path: Path) -> None:
    run = job(tmp_path, command="python -m pytest -q -p no:cacheprovider tests/check_model.py")
    rehearsed = run.step("Rehearse")
    assert rehearsed.returncode == 0, rehearsed.stderr  # the next step says so, with its reasons
    assert run.outputs == {"exit-code": "1"}
    assert "1 failed, 1 passed" in rehearsed.stdout
    told = run.step("Report")
    assert told.returncode == 1
    trap = "file=project/model.py,line=17,title=float64 becomes float32 on the device"
    assert f"::warning {trap}::use float32" in told.stdout
    assert "_embedding_bag_backward runs on the CPU" in told.stdout
    summary = (tmp_path / ".step_summary").read_text()
    assert "| trap | `project/model.py:17` | float64 becomes float32" in summary
    document = json.loads((tmp_path / "project" / "rehearsal" / "rehearsal.json").read_text())
    assert document["rehearsal"] is True


@pytest.mark.slow
@pytest.mark.compiler
def test_a_job_whose_tests_pass_fails_only_on_what_it_names(tmp_path: Path) -> None:
    words = "python -m pytest -q -p no:cacheprovider tests/check_model.py -k 'loss or none'"
    run = job(tmp_path, command=words)
    run.step("Rehearse")
    assert run.outputs == {"exit-code": "0"}
    assert run.step("Report").returncode == 0
    run.inputs["fail-on"] = "traps"
    assert run.step("Report").returncode == 0
    run.inputs["fail-on"] = "traps,fallbacks"
    failed = run.step("Report")
    assert failed.returncode == 1
    assert "1 fallback." in failed.stdout


@pytest.mark.slow
@pytest.mark.compiler
def test_the_policy_makes_a_test_fail_that_needs_the_cpu(tmp_path: Path) -> None:
    words = "python -m pytest -q -p no:cacheprovider tests/check_model.py -k loss"
    run = job(tmp_path, command=words, policy="error")
    rehearsed = run.step("Rehearse")
    assert run.outputs == {"exit-code": "1"}
    assert "aten::_embedding_bag_backward" in rehearsed.stdout


def test_a_wrong_input_ends_the_job_at_once(tmp_path: Path) -> None:
    run = job(tmp_path, command="pytest", chip="ascent")
    failed = run.step("Rehearse")
    assert failed.returncode == 2
    assert "unknown chip 'ascent'. Did you mean 'ascend'?" in failed.stderr


@pytest.mark.slow
@pytest.mark.compiler
def test_the_gitlab_component_does_the_same(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "project")
    head, component = GITLAB
    inputs: dict[str, Any] = head["spec"]["inputs"]
    given = {key: item.get("default", "") for key, item in inputs.items()}
    given["command"] = "python -m pytest -q -p no:cacheprovider tests/check_model.py"
    lines = [filled(line, given) for line in component["rehearse"]["script"]]
    assert lines[0].startswith("pip install ")
    assert "apt-get" in lines[1]
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "\n".join(lines[2:])],
        cwd=tmp_path / "project",
        env=surroundings(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "model.py:17: float64 becomes float32 on the device" in done.stdout
    assert (tmp_path / "project" / "rehearsal" / "summary.md").is_file()


def filled(text: str, inputs: dict[str, str]) -> str:
    """`$[[ inputs.name ]]` as GitLab fills it."""
    return re.sub(r"\$\[\[ inputs\.([\w-]+) \]\]", lambda found: str(inputs[found[1]]), text)


def test_the_gitlab_component_uses_every_input() -> None:
    text = (ROOT / "ci" / "gitlab.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == {*GITLAB[0]["spec"]["inputs"]}


def test_the_container_installs_what_the_action_installs() -> None:
    text = (ROOT / "ci" / "Dockerfile").read_text(encoding="utf-8")
    assert f"ARG TORCH={ACTION['inputs']['torch-version']['default']}" in text
    assert '"torch==$TORCH" "torch-npu==$TORCH" "/opt/joymigrate[ascend]"' in text
    assert "gcc libc6-dev" in text
    assert "was not built" in text  # nobody may think that it was
