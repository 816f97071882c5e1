"""Rewrite public repositories in all three styles, check every output, and draw hunks to read.

    python -m benchmarks.rewrite_reading --mirrors DIR --out DIR [--repository NAME …] [--style …]
    python -m benchmarks.rewrite_reading --out DIR --draw 200 --sites 100 [--seed 2026] [--style …]

The first form takes each repository at the commit of the list below (DIR holds OWNER+NAME/repo git
folders), rewrites it in the styles direct, agnostic and shim, and counts: Python files that parsed
before and do not after, and added imports that do not resolve. An import is looked up without the
code that wrote it: from the folders that the file's own imports of the project need on the path;
where it has none, from its own folder if it is a script, else from above its package; and from the
nearest folder that is installed (`setup.py`, `pyproject.toml`). What was changed, and what was
reported instead, is kept.

The second form draws from what was kept: first a repository, then a style (direct or agnostic, or
those asked for), then a hunk or a reported site in it, so that a large repository is not all that
is read.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joymigrate import chips
from joymigrate.model import Style, Tier
from joymigrate.rewrite import patches, scan
from joymigrate.rewrite.module import HELPER

REPOSITORIES = {
    "Project-MONAI/MONAI": "d388d1c6fe",
    "huggingface/diffusers": "58eb52c080",
    "deepspeedai/DeepSpeed": "edaa722126",
    "hpcaitech/ColossalAI": "4f9953be33",
    "speechbrain/speechbrain": "9c826ef393",
    "facebookresearch/fairseq": "3d262bb256",
    "pyg-team/pytorch_geometric": "5c6461b230",
    "kornia/kornia": "b4f5a78a13",
    "salesforce/LAVIS": "506965b9c4",
    "coqui-ai/TTS": "dbf1a08a0d",
    "facebookresearch/audiocraft": "896ec7c47f",
    "CompVis/latent-diffusion": "a506df5756",
    "IDEA-Research/GroundingDINO": "856dde20ae",
    "facebookresearch/detectron2": "02b5c4e295",
    "state-spaces/mamba": "e9594ce1c7",
    "haotian-liu/LLaVA": "c121f0432d",
    "thuml/Time-Series-Library": "4e938a1767",
    "cornellius-gp/gpytorch": "7c4ec80f0f",
    "pytorch/ignite": "de08e799cf",
    # Of the second reading.
    "lightly-ai/lightly": "e8d317fc5a",
    "pytorch/captum": "faac087731",
    "pytorch/opacus": "4d0ebc8461",
    "pfnet/pytorch-pfn-extras": "8999d94cf7",
    "huggingface/trl": "f2cd57710a",
    "huggingface/peft": "5d602fdbff",
    "huggingface/pytorch-image-models": "aa4b5850c1",
    "hiyouga/LLaMA-Factory": "ff6d4d12ee",
    "FlagOpen/FlagEmbedding": "7ed43d67ec",
    "open-compass/opencompass": "a5acc4bba3",
    "RUCAIBox/RecBole": "7b02be5ec8",
    "KevinMusgrave/pytorch-metric-learning": "216a792c22",
    "vwxyzjn/cleanrl": "fe8d8a03c4",
    "skorch-dev/skorch": "5db0ddc962",
    "kozistr/pytorch_optimizer": "7a076d2f8f",
    "unslothai/unsloth": "015bdef0d9",
    # Of the third reading, with four of the first list.
    "modelscope/FunASR": "3c58cb56a5",
    "lm-sys/FastChat": "0e6d3e4bea",
    "alibaba/ROLL": "8eb27cc2dc",
    "hiyouga/EasyR1": "b44b311b66",
    "facebookresearch/generative-recommenders": "2e81fab69a",
    "pytorch/examples": "77f55b9121",
    "EleutherAI/lm-evaluation-harness": "4e7e0d47f3",
    "huggingface/accelerate": "16cb6eb80d",
    "open-mmlab/mmcv": "a8073c74bf",
    "pytorch/torchrec": "a48cef79eb",
    "facebookresearch/dlrm": "090956ee23",
    "facebookresearch/mae": "efb2a8062c",
    "facebookresearch/segment-anything": "dca509fe79",
    "huggingface/sentence-transformers": "cad211983f",
    "fla-org/flash-linear-attention": "bc3b101dcb",
    "lucidrains/denoising-diffusion-pytorch": "faed4db28e",
    "geoopt/geoopt": "07598cdbf8",
    "shenweichen/DeepCTR-Torch": "f6854257b1",
    "mlfoundations/open_clip": "89fb801f1e",
    # Of the fourth reading.
    "Lightning-AI/pytorch-lightning": "7f0c3436cd",
    "dmlc/dgl": "3d16000b41",
    "deepchem/deepchem": "fbe3b911a9",
    "facebookresearch/ParlAI": "a29567f7ce",
    "pytorch/rl": "ae9719f17b",
    "facebookresearch/pytorch3d": "9381c40163",
    "pyro-ppl/pyro": "ff6ae1c957",
    "mosaicml/composer": "6405188805",
    "DLR-RM/stable-baselines3": "e05d2dbe6e",
    "openai/guided-diffusion": "22e0df8183",
    "MIC-DKFZ/nnUNet": "0e495086eb",
    "OpenNMT/OpenNMT-py": "97111d9755",
    "facebookresearch/dinov2": "b8931f7bf9",
    "THUDM/CogVideo": "e519eced78",
    "facebookresearch/SlowFast": "287ec00768",
    "oobabooga/text-generation-webui": "1dcde41d03",
    # Of the fifth reading.
    "InternLM/lmdeploy": "1263d5cd88",
    "openvinotoolkit/nncf": "ef8e1dbd82",
    "axolotl-ai-cloud/axolotl": "067b021c8b",
    "allenai/allennlp": "80fb6061e5",
    "facebookresearch/mmf": "b0ffc7fba3",
    "flairNLP/flair": "d4ea377799",
    "nerfstudio-project/nerfstudio": "50e0e3c70c",
    "thu-ml/tianshou": "f2402056b0",
    "catalyst-team/catalyst": "e99f90655d",
    "facebookresearch/fairscale": "146f160241",
    "facebookresearch/xformers": "ca6d2aa0d4",
    "suno-ai/bark": "f4f32d4cd4",
    "openai/CLIP": "d05afc436d",
    # Of the sixth reading.
    "NVIDIA/NeMo": "8cfedd7203",
    "open-mmlab/mmdetection3d": "fe25f7a51d",
    "intel/neural-compressor": "9b47d09b8d",
    "pytorch/ao": "36027d82d1",
    "microsoft/nni": "767ed7f22e",
    "opendilab/DI-engine": "d0b21d065b",
    "k2-fsa/icefall": "36e0420c7e",
    "deepmodeling/deepmd-kit": "bc902daf74",
    "TransformerLensOrg/TransformerLens": "4cd36aaeb5",
    "aqlaboratory/openfold": "ce0029e119",
    "EleutherAI/gpt-neox": "ea7aefd8f8",
    "s3prl/s3prl": "ec8064b588",
    "Lightning-AI/litgpt": "26857050fe",
    "kohya-ss/sd-scripts": "48d368fa55",
    "facebookresearch/fairseq2": "027bdebca4",
    "asteroid-team/asteroid": "92c8d83a9d",
    "OpenGVLab/InternVL": "2410d1dbf2",
    "huggingface/nanotron": "2411b022a7",
    # Of the seventh reading.
    "ludwig-ai/ludwig": "5d19f3e632",
    "huggingface/lerobot": "7427f31801",
    "open-mmlab/mmaction2": "4d6c934747",
    "alibaba/FederatedScope": "480b67de85",
    # Of the eighth reading.
    "NVIDIA/physicsnemo": "94b355108c",
    "invoke-ai/InvokeAI": "8e71a8a519",
    "modelscope/modelscope": "2905da1220",
    "autogluon/autogluon": "f34ebb4f66",
    "facebookresearch/fairchem": "a73c95be1d",
    "determined-ai/determined": "c1e9c6d7b8",
    "open-mmlab/mmagic": "0a560bba9b",
    "pytorch/torchtitan": "b5bcd76c66",
    "pytorch/executorch": "cff6f4dd32",
    "NVIDIA/DeepLearningExamples": "729963dd47",
    "facebookresearch/vissl": "09270ed25a",
    "allenai/OLMo": "59a53e3f68",
    "deepspeedai/Megatron-DeepSpeed": "4efb479d53",
    "deepset-ai/haystack": "c7cb46c0f2",
    "OpenRLHF/OpenRLHF": "3c3be6234e",
    "facebookresearch/habitat-lab": "0fb6f43ffe",
    # Of the ninth reading.
    "pytorch/benchmark": "0e83c440a5",
    "FlagAI-Open/FlagAI": "9a885f3384",
    "microsoft/DeepSpeedExamples": "83757d9c93",
    "vladmandic/automatic": "431bcc3609",
}

SETUPS = (
    "setup.py",
    "pyproject.toml",
    "setup.cfg",
)  # of a project that is installed


def checkout(mirror: Path, commit: str, folder: Path) -> Path:
    """The tree of a commit below `folder`, without files that the mirror lacks."""
    git = ["git", "-C", str(mirror)]
    asked = [*git, "ls-tree", "-r", "-z", commit]
    listed = subprocess.run(asked, capture_output=True, check=True).stdout
    names = dict(reversed(line.split(b"\t", 1)) for line in listed.split(b"\0") if line)
    blobs = b"\n".join(dict.fromkeys(entry.split()[2] for entry in names.values()))
    asked = [*git, "cat-file", "--batch-check"]
    there = subprocess.run(asked, input=blobs, capture_output=True, check=True).stdout
    absent = {line.split()[0] for line in there.splitlines() if line.endswith(b" missing")}
    left = [n.decode() for n, entry in names.items() if entry.split()[2] in absent]
    without = [f":(exclude,literal){name}" for name in left]
    archive = subprocess.run(
        [*git, "archive", commit, "--", ".", *without], capture_output=True, check=True
    ).stdout
    folder.mkdir(parents=True)
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive, check=True)
    return folder


def parses(data: bytes) -> bool:
    """Whether bytes are Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(data)
    except (SyntaxError, ValueError):
        return False
    return True


def imports(tree: ast.AST) -> Iterator[tuple[str, int, tuple[str, ...], bool]]:
    """Every import of a module: dotted name, dots before it, names, whether inside a `try`."""
    tried = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for statement in (*node.body, *(s for h in node.handlers for s in h.body))
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.name, 0, (), id(node) in tried) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(a.name for a in node.names)
            yield node.module or "", node.level, names, id(node) in tried


def found_from(base: Path, dotted: str) -> bool:
    """Whether a module or package is found when `base` is on the path (nothing is run)."""
    place = base.joinpath(*dotted.split("."))
    return place.with_suffix(".py").is_file() or place.is_dir()


def roots(root: Path, path: Path, tree: ast.AST) -> list[Path]:
    """Folders that must be on the path for the imports of the project that a file has itself."""
    # That of its package first: a module of a package does not see what lies beside it.
    above = [folder for folder in path.parents if folder.is_relative_to(root)]
    folders = [package_home(path), root, root / "src", *above]
    needed: list[Path] = []
    for dotted, level, _, _ in imports(tree):
        if (
            level
            or HELPER in dotted
            or not dotted
            or dotted in (path.stem, *sys.stdlib_module_names)
        ):
            continue
        known = (f / each for f in folders for each in (f"{dotted}.py", f"{dotted}/__init__.py"))
        if "." not in dotted and not any(place.is_file() for place in known):
            continue  # a bare name of a folder proves nothing
        at = next((folder for folder in folders if found_from(folder, dotted)), None)
        if at is not None and at not in needed:
            needed.append(at)
    return needed


def package_home(path: Path) -> Path:
    """The folder above the package that a file belongs to; its own for a loose file."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def unresolved(root: Path, path: Path, data: bytes) -> str | None:
    """The helper's import in new content that does not resolve; None when none is lost."""
    tree = ast.parse(data)
    asked = [
        (dotted, names)
        for dotted, level, names, _ in imports(tree)
        if not level and (dotted == HELPER or HELPER in names)
    ]
    if not asked:
        return None
    bases = roots(root, path, tree)
    guard = b"__main__" in data
    bases += [path.parent] * (guard and path.parent not in bases and bool(bases))  # run by its path
    relative = any(level for _, level, _, _ in imports(tree))
    if not bases:
        bases = [path.parent] if guard and not relative else [package_home(path)]
    own = [] if bases else [package_home(path)] * (path.parent / "__init__.py").is_file()
    near = next((f for f in path.parents if any((f / n).is_file() for n in SETUPS)), root)
    installed = [near, near / "src"] if near.is_relative_to(root) else []
    bases += own + [folder for folder in installed if folder.is_dir() and folder not in bases]
    names = [f"{dotted}.{HELPER}" if dotted != HELPER else dotted for dotted, _ in asked]
    if any(found_from(base, name) for base in bases for name in names):
        return None
    return f"{asked[0][0]} from {', '.join(str(base.relative_to(root)) for base in bases)}"


def hunks(path: str, before: bytes, after: bytes) -> list[str]:
    """The hunks of one file's difference, with three lines around each."""
    old = before.decode("utf-8", "replace").splitlines()
    new = after.decode("utf-8", "replace").splitlines()
    made: list[str] = []
    for line in difflib.unified_diff(old, new, path, path, lineterm=""):
        if line.startswith("@@"):
            made.append(f"{path} {line}")
        elif made:
            made[-1] += "\n" + line
    return made


def style_of(root: Path, style: Style) -> dict[str, Any]:
    """What one style makes of a checkout."""
    result = scan([root], chip=chips.target(None), origin=chips.origin(), style=style)
    made = patches(result)
    for patch in made:  # the helper must lie where it is imported from
        if patch.before is None and patch.after is not None:
            patch.path.write_bytes(patch.after)
    broken, lost, drawn = [], [], []
    for patch in made:
        name = patch.path.relative_to(root).as_posix()
        if patch.before is None or patch.after is None:
            continue
        drawn += hunks(name, patch.before, patch.after)
        if patch.path.suffix != ".py" or not parses(patch.before):
            continue
        if not parses(patch.after):
            broken.append(name)
            continue
        problem = unresolved(root, patch.path, patch.after)
        lost += [f"{name}: {problem}"] if problem else []
    for patch in made:
        if patch.before is None:
            patch.path.unlink(missing_ok=True)
    lines: dict[str, list[str]] = {}
    sites = []
    for each in result.findings:
        if each.tier is Tier.SAFE or each.rule == "JM000":
            continue
        if each.path not in lines:
            text = (root / each.path).read_bytes().decode("utf-8", "replace")
            lines[each.path] = text.splitlines()
        near = lines[each.path][max(0, each.line - 4) : each.line + 2]
        told = f"{each.path}:{each.line} {each.rule} {each.tier.value}: {each.message}"
        sites.append("\n".join([told, f"  reason: {each.reason}", *near]))
    return {
        "lines": result.lines,
        "files": len(made),
        "broken": broken,
        "unresolved": lost,
        "left by the proof": [f"{p.path.name}: {w}" for p in made for _, w in p.left],
        "safe": sum(each.tier is Tier.SAFE for each in result.findings),
        "unsafe": sum(each.tier is Tier.UNSAFE for each in result.findings),
        "reported": sum(each.tier is Tier.REPORT for each in result.findings),
        "hunks": drawn,
        "sites": sites,
    }


def draw(folder: Path, styles: list[str], what: str, count: int, seed: int) -> list[str]:
    """Random hunks or sites: a repository, a style, one of its hunks; none twice."""
    rng = random.Random(seed)
    kept = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    kept = [each for each in kept if all(style in each for style in styles)]
    chosen: list[str] = []
    while len(chosen) < count:
        each, style = rng.choice(kept), rng.choice(styles)
        if not each[style][what]:
            continue
        one = f"{each['name']} {style} {rng.choice(each[style][what])}"
        if one not in chosen:
            chosen.append(one)
    return chosen


def main() -> None:
    """Rewrite and check, or draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mirrors", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repository", action="append", choices=list(REPOSITORIES))
    parser.add_argument("--style", action="append", choices=[each.value for each in Style])
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--sites", type=int, default=0)
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    if options.mirrors is None:
        for what, count in (("hunks", options.draw), ("sites", options.sites)):
            styles = options.style or ["direct", "agnostic"]
            drawn = draw(options.out, styles, what, count, options.seed)
            for number, text in enumerate(drawn, 1):
                print(f"==== {what} {number}: {text}")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    print("| repository | style | files changed | safe / unsafe / reported | broken | unresolved |")
    print("|---|---|---|---|---|---|")
    for name in options.repository or REPOSITORIES:
        place = options.out / f"{name.replace('/', '+')}.json"
        kept: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {"name": name}
        mirror = options.mirrors / name.replace("/", "+") / "repo"
        for style in map(Style, options.style or [each.value for each in Style]):
            with tempfile.TemporaryDirectory() as folder:
                root = checkout(mirror, REPOSITORIES[name], Path(folder) / name.partition("/")[2])
                each = kept[style.value] = style_of(root, style)
            counts = f"{each['safe']} / {each['unsafe']} / {each['reported']}"
            failed = f"{len(each['broken'])} | {len(each['unresolved'])}"
            print(f"| {name} | {style.value} | {each['files']} | {counts} | {failed} |", flush=True)
        place.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
