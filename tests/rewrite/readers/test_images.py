"""Dockerfiles and Makefiles."""

from __future__ import annotations

from tests.rewrite.readers.moved import found, moved, rules

DOCKERFILE = """\
# syntax=docker/dockerfile:1
# cuda image
ARG BASE=nvidia/cuda:12.1.0-devel
FROM --platform=linux/amd64 nvidia/cuda:12.1.0-runtime AS run
LABEL description="cuda image"
ENV CUDA_VISIBLE_DEVICES=0 \\
    # the network
    NCCL_SOCKET_IFNAME=eth0
ENV CUDA_HOME /usr/local/cuda
RUN --mount=type=cache,target=/root/.cache pip install torch==2.1.0+cu121 && \\
    apt-get install -y cuda-toolkit-12-4
RUN <<EOF
export CUDA_VISIBLE_DEVICES=1
EOF
CMD ["python", "train.py", "--device", "cuda"]
ENTRYPOINT ["bash", "-c", "python t.py --backend=nccl"]
"""


def test_nothing_in_an_image_is_edited_without_a_look() -> None:
    assert moved("Dockerfile", DOCKERFILE) == DOCKERFILE


def test_an_image_moves_instruction_by_instruction() -> None:
    after = moved("docker/Dockerfile.gpu", DOCKERFILE, unsafe=True)
    assert after == (
        DOCKERFILE.replace("ENV CUDA_VISIBLE", "ENV ASCEND_RT_VISIBLE")
        .replace("export CUDA_VISIBLE", "export ASCEND_RT_VISIBLE")
        .replace("NCCL_SOCKET", "HCCL_SOCKET")
        .replace("torch==2.1.0+cu121", "torch==2.1.0 'torch-npu==2.1.0.*'")
        .replace('"--device", "cuda"', '"--device", "npu"')
        .replace("--backend=nccl", "--backend=hccl")
    )
    assert moved("Dockerfile.gpu", after, unsafe=True) == after


def test_base_images_libraries_and_the_toolkits_folder_are_reported() -> None:
    reported = [text for _, tier, text in rules("Containerfile", DOCKERFILE) if tier == "report"]
    assert reported == [
        "nvidia/cuda:12.1.0-devel",
        "nvidia/cuda:12.1.0-runtime",
        "CUDA_HOME",
        "cuda-toolkit-12-4",
    ]


def test_an_image_of_anybody_else_stays() -> None:
    assert found("Dockerfile", "FROM python:3.11\nRUN pip install numpy\nCOPY cuda /cuda\n") == []


def test_both_variables_are_set_in_an_image() -> None:
    before = "FROM x\nENV CUDA_VISIBLE_DEVICES=0\n"
    after = moved("Dockerfile", before, style="agnostic", unsafe=True)
    assert after == "FROM x\nENV CUDA_VISIBLE_DEVICES=0 ASCEND_RT_VISIBLE_DEVICES=0\n"
    assert moved("Dockerfile", after, style="agnostic", unsafe=True) == after


def test_recipes_of_a_makefile_are_shell_text() -> None:
    before = (
        "# cuda\nexport CUDA_VISIBLE_DEVICES := 0\ntrain: cuda.txt\n"
        "\t@python t.py --device cuda \\\n\t  --backend nccl\n\tnvidia-smi\n"
    )
    assert moved("Makefile", before) == before
    assert moved("Makefile", before, unsafe=True) == (
        before.replace("CUDA_V", "ASCEND_RT_V")
        .replace("--device cuda", "--device npu")
        .replace("nccl", "hccl")
        .replace("nvidia-smi", "npu-smi info")
    )
