"""Composed files: only edits change bytes, a second run finds nothing, the way back works."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.source import Unreadable, apply_edits
from tests.rewrite.readers.moved import found, moved_bytes

SHELL = [
    "export CUDA_VISIBLE_DEVICES=0,1",
    "CUDA_VISIBLE_DEVICES=$i python a.py --device cuda:0  # cuda 中文",
    'echo "on $CUDA_VISIBLE_DEVICES of cuda"',
    "export CUDA_LAUNCH_BLOCKING=1",
    "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
    "export NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=INFO",
    "torchrun t.py \\",
    "  --backend nccl --device=cuda",
    "DEVICE=${DEVICE:-cuda}",
    'if [ "$DEVICE" = "cuda" ]; then nvidia-smi; fi',
    "case $DEVICE in cuda*) a ;; esac",
    "# export CUDA_VISIBLE_DEVICES=1",
    "cat <<EOF",
    "EOF",
    "ARGS=(--device cuda",
    ")",
    "EMPTY=()",
    "> log.txt",
    "python a.py --load_in_4bit --optim adamw_bnb_8bit",
    "'",
    '"',
    "#SBATCH --gres=gpu:8",
    "docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=all nvidia/cuda:12 python a.py",
    "pip install torch==2.1.0+cu121 flash-attn --index-url https://example.org/whl/cu121",
    "",
    "\t设备=1",
]
YAML = [
    "device: cuda  # cuda 设备",
    "model: {device: 'cuda:0', name: cuda}",
    "backend: nccl",
    'env: {CUDA_VISIBLE_DEVICES: "0"}',
    "environment:",
    "  CUDA_VISIBLE_DEVICES: 0,1",
    "  NCCL_DEBUG: INFO",
    "variables:",
    "  - CUDA_VISIBLE_DEVICES=0",
    "  - name: CUDA_VISIBLE_DEVICES",
    "    value: '0'",
    "resources: {limits: {nvidia.com/gpu: 1}}",
    "run: |",
    "  nvidia-smi",
    "  python a.py --device cuda",
    "args: [--device, cuda]",
    "description: cuda",
    "image: nvidia/cuda:12",
    "# device: cuda",
    "",
]
REQUIREMENTS = [
    "torch==2.1.0+cu121  # cuda",
    "torch>=2.0",
    "torchvision==0.16.0+cu121",
    "flash-attn",
    "numpy",
    "# torch==2.1.0+cu121",
    "--extra-index-url https://example.org/whl/cu121",
    "torch==2.1.0 \\",
    "    --hash=sha256:0",
    "",
]
DOCKER = [
    "FROM nvidia/cuda:12.1.0-devel",
    "ENV CUDA_VISIBLE_DEVICES=0 \\",
    "    NCCL_SOCKET_IFNAME=eth0",
    "RUN nvidia-smi && python a.py --device cuda \\",
    "  # cuda 中文",
    'CMD ["python", "--device", "cuda"]',
    "ENV CUDA_LAUNCH_BLOCKING 1",
    "# ENV CUDA_VISIBLE_DEVICES=0",
    "",
]
KINDS = {
    "run.sh": SHELL,
    "conf.yaml": YAML,
    "requirements.txt": REQUIREMENTS,
    "Dockerfile": DOCKER,
    "settings.ini": [
        "[a]",
        "device = cuda ; c",
        "backend=nccl",
        "CUDA_VISIBLE_DEVICES=0",
        "# cuda",
    ],
    "Makefile": [
        "all: a",
        "\tpython a.py --device cuda",
        "export CUDA_VISIBLE_DEVICES=0",
        "# cuda",
    ],
}


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    path = draw(st.sampled_from(sorted(KINDS)))
    lines = draw(st.lists(st.sampled_from(KINDS[path]), max_size=10))
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    last = draw(st.sampled_from(["", ending]))
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return path, mark + (ending.join(lines) + last).encode()


def findings(path: str, data: bytes, style: str) -> list[Finding] | None:
    """None for a composed file that is no file of its kind."""
    try:
        return found(path, data, style=style)
    except Unreadable:
        return None


@given(files(), st.sampled_from(["direct", "agnostic"]), st.booleans())
def test_a_second_run_changes_nothing(file: tuple[str, bytes], style: str, unsafe: bool) -> None:
    path, data = file
    if findings(path, data, style) is None:
        return
    after = moved_bytes(path, data, style=style, unsafe=unsafe)
    assert moved_bytes(path, after, style=style, unsafe=unsafe) == after


@given(files())
def test_the_way_back_restores_every_byte_of_safe_edits(file: tuple[str, bytes]) -> None:
    path, data = file
    if findings(path, data, "direct") is None:
        return
    after = moved_bytes(path, data)
    assert moved_bytes(path, after, to="nvidia", origin="ascend") == data


@given(files(), st.sampled_from(["direct", "agnostic"]))
def test_edits_replace_what_their_findings_say_and_nothing_else(
    file: tuple[str, bytes], style: str
) -> None:
    path, data = file
    for finding in findings(path, data, style) or []:
        assert (finding.after is None) == (not finding.edits)
        assert finding.tier is not Tier.REPORT or not finding.edits
        assert finding.reason or finding.tier is Tier.SAFE
        if len(finding.edits) == 1 and finding.after is not None and finding.before:
            (edit,) = finding.edits
            if edit.end > edit.start:
                assert data[edit.start : edit.end].decode() == finding.before
                assert edit.text.decode() == finding.after


@given(files(), st.sampled_from(["direct", "agnostic"]))
def test_comments_are_never_edited(file: tuple[str, bytes], style: str) -> None:
    path, data = file
    if any(line in (b"'", b'"', b"cat <<EOF") for line in data.splitlines()):
        return  # what looks like a comment then stands inside a text
    edits = [e for f in findings(path, data, style) or [] for e in f.edits]
    after = apply_edits(data, edits)
    for comment in (b"# cuda", b"# export CUDA_VISIBLE_DEVICES=1", b"# device: cuda", b"; c"):
        assert after.count(comment) == data.count(comment)


@pytest.mark.parametrize("path", sorted(KINDS))
def test_every_line_by_itself_is_read(path: str) -> None:
    for line in KINDS[path]:
        findings(path, line.encode(), "direct")
