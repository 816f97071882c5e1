"""A chip of another package brings every kind of file that the chips of joymigrate have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "chip.yaml": """
name: acme
title: Acme AI card
device: acm
backend: accl
package: torch_acm
api: {import_module: torch.acm}
environment: {visible_devices: ACM_VISIBLE_DEVICES}
tools: {nvidia-smi: {to: acm-smi}}
""",
    "overrides.yaml": "JM151: {message: the card has no such switch}\n",
    "imports.yaml": "imports: {apex: {to: acme_apex, note: the vendor's, date: 2026-01-01}}\n",
    "ops/operators.yaml": "meta: {chip: acme, fallback: error}\nops: [aten::mm, acme::fused]\n",
    "topology.yaml": "kinds: [{name: acme-8, title: Acme server, cards: 8, rule: count}]\n",
    "monitor.yaml": r"""
command: [acm-smi, --csv]
row: '(?m)^(?P<index>\d+),(?P<util>\d+),(?P<used>\d+),(?P<total>\d+)$'
""",
    "kernels.yaml": """
schema: joymigrate.chip-kernels/1
implementations: [{op: rms_norm, function: "acme_chip:rms_norm", source: acme}]
""",
    "tolerance.yaml": """
schema: joymigrate.tolerance/1
operators:
  single:
    method: allclose
    dtypes: {float32: {rtol: 0.5, atol: 0.25}}
    source: acme
""",
    "advice.yaml": """
rules:
- id: ACME-MM
  title: Small products
  detect: {by: mask_index, ops: [index_put_]}
  problem: it waits
  action: batch them
  source: acme
""",
    "serve.yaml": """
schema: joymigrate.chip-serve/1
engines: {acme-llm: {module: acme_llm, program: acme-llm, install: pip install acme-llm}}
""",
    "triton.yaml": "schema: joymigrate.triton/1\npackage: triton-acme\nsource: acme\n",
}
ASK = """
import json
from joymigrate.chips import get
from joymigrate.profile.advice.rules import load_rules
from joymigrate.profile.oplist.entries import find, read
from joymigrate.profile.port.check import load
from joymigrate.rewrite import rules
from joymigrate.chips import origin
from joymigrate.run.cluster.kinds import all_kinds
from joymigrate.run.serve.engine.launch import launchers
from joymigrate.run.kernels.vendors import implementations
from joymigrate.run.serve.monitor.devices import parse, probes
from joymigrate.verify.tolerance import Tolerance
chip = get("acme")
probe = next(probe for probe in probes() if probe.chip == "acme")
print(json.dumps({
    "source": chip.source,
    "override": rules.load(chip, origin())["JM151"].message,
    "import": chip.imports()["apex"].to,
    "operators": [entry.name for entry in read(find(chip)).entries],
    "kind": all_kinds()["acme-8"].chip,
    "monitor": parse(probe, "0,50,10,40"),
    "kernels": [one.function for one in implementations("rms_norm") if "acm" in one.devices],
    "tolerance": Tolerance.of("acme").parts.single.dtypes["float32"]["rtol"],
    "advice": "ACME-MM" in [rule.id for rule in load_rules(chip)],
    "engine": launchers()["acme-llm"].chip,
    "triton": load(chip)["package"],
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the chip installed in it, as pip leaves one."""
    site = tmp_path_factory.mktemp("site")
    module = site / "acme_chip"
    for name, text in FILES.items():
        path = module / "rules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"))
    (module / "__init__.py").write_text(
        "from pathlib import Path\n\ndef folder():\n    return Path(__file__).parent / 'rules'\n"
    )
    information = site / "acme_chip-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-chip\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[joymigrate.chips]\nacme = acme_chip:folder\n")
    return site


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=site, capture_output=True, text=True, check=False
    )


def test_every_file_of_the_package_is_read(site: Path) -> None:
    done = python(site, "-c", ASK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "source": "package acme-chip",
        "override": "the card has no such switch",
        "import": "acme_apex",
        "operators": ["aten::mm", "acme::fused"],
        "kind": "acme",
        "monitor": {"device_util|acme 0": 50.0, "device_memory|acme 0": 25.0},
        "kernels": ["acme_chip:rms_norm"],
        "tolerance": 0.5,
        "advice": True,
        "engine": "acme",
        "triton": "triton-acme",
    }


def test_the_package_is_valid_and_each_mistake_in_it_is_named(site: Path) -> None:
    rules = site / "acme_chip" / "rules"
    done = python(site, "-m", "joymigrate", "chips", "validate", "acme")
    assert (done.returncode, done.stdout) == (0, "Checked 1 chip: valid.\n"), done.stdout
    (rules / "serve.yaml").write_text("schema: joymigrate.serve/2\n")
    done = python(site, "-m", "joymigrate", "chips", "validate", "acme")
    (rules / "serve.yaml").write_text(FILES["serve.yaml"])
    assert done.returncode == 1
    assert f"{rules / 'serve.yaml'}:1: schema: the schema is" in done.stdout


def test_a_chip_that_can_not_be_rehearsed_says_so(site: Path) -> None:
    done = python(site, "-m", "joymigrate", "rehearse", "--to", "acme", "--", "python", "x.py")
    assert done.returncode == 2
    assert "Acme AI card cannot be rehearsed" in done.stderr
    doctor = python(site, "-m", "joymigrate", "doctor", "--to", "acme").stdout
    assert "acm-smi" in doctor
    assert "without a chip: joymigrate rehearse" not in doctor
