"""Shell scripts: variables, devices, tools, launchers and installs, and what stays."""

from __future__ import annotations

import pytest

from tests.rewrite.readers.moved import found, moved, rules


def test_every_use_of_the_visible_cards_moves_together() -> None:
    before = (
        "export CUDA_VISIBLE_DEVICES=0,1\n"
        'n=$(echo "$CUDA_VISIBLE_DEVICES" | tr "," "\\n" | wc -l)\n'
        "CUDA_VISIBLE_DEVICES=$i python a.py ${CUDA_VISIBLE_DEVICES:-0}\n"
        "unset CUDA_VISIBLE_DEVICES\n"
    )
    assert moved("run.sh", before) == before.replace("CUDA_", "ASCEND_RT_")


def test_a_script_for_both_platforms_is_left_to_its_author() -> None:
    before = (
        "if has_npu; then export ASCEND_RT_VISIBLE_DEVICES=0\n"
        "else export CUDA_VISIBLE_DEVICES=0; fi\n"
    )
    assert moved("run.sh", before, unsafe=True) == before
    assert rules("run.sh", before) == [("JM170", "report", "CUDA_VISIBLE_DEVICES")]


def test_a_value_that_hides_every_card_holds_back_the_whole_variable() -> None:
    before = 'CUDA_VISIBLE_DEVICES="" python a.py\nCUDA_VISIBLE_DEVICES=1 python b.py\n'
    assert moved("run.sh", before) == before
    assert "CUDA" not in moved("run.sh", before, unsafe=True)


@pytest.mark.parametrize(
    "line",
    [
        "# export CUDA_VISIBLE_DEVICES=0",
        "echo 'set CUDA_VISIBLE_DEVICES=0 first'",
        "python train.py --no-cuda --use_cuda 1 --cuda-graph-impl local",
        "python train.py --model nvidia/Llama-3 --name cuda_amp --target main.CUDACallback",
        "from_cuda=1; CUDA_FLAG='--cuda'; NCCL_VER=2.1",
        "cd cuda && ls nccl",
        "echo cuda",
        "DEVICE_COUNT=8",
        "grep -r cuda . | wc -l",
    ],
)
def test_names_messages_and_flags_stay(line: str) -> None:
    assert found("run.sh", line + "\n") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("python a.py --device cuda", "python a.py --device npu"),
        ("python a.py --device=cuda:0", "python a.py --device=npu:0"),
        ('python a.py --device "cuda:$RANK"', 'python a.py --device "npu:$RANK"'),
        ("python a.py --device-type cuda", "python a.py --device-type npu"),
        ("python a.py trainer.device=cuda", "python a.py trainer.device=npu"),
        ("python a.py +trainer.device='cuda'", "python a.py +trainer.device='npu'"),
        ("python a.py --dist-backend nccl", "python a.py --dist-backend hccl"),
        ("ARGS=(\n  --distributed-backend nccl\n)", "ARGS=(\n  --distributed-backend hccl\n)"),
        ("python a.py --backend cpu:gloo,cuda:nccl", "python a.py --backend cpu:gloo,npu:hccl"),
        ("docker run x python a.py --device cuda", "docker run x python a.py --device npu"),
        ('DEVICE="cuda:0"', 'DEVICE="npu:0"'),
        ("export DEVICE=${1:-cuda}", "export DEVICE=${1:-npu}"),
        ("D=cuda\npython a.py --device $D", "D=npu\npython a.py --device $D"),
        ("for d in cuda cpu; do a --device $d; done", "for d in npu cpu; do a --device $d; done"),
        ('[ "$DEVICE" = cuda ] && a', '[ "$DEVICE" = npu ] && a'),
        ("[[ $DEVICE == cuda* ]] && a", "[[ $DEVICE == npu* ]] && a"),
        ("case $DEVICE in cuda|cuda:*) a;; esac", "case $DEVICE in npu|npu:*) a;; esac"),
    ],
)
def test_devices_and_backends_move(before: str, after: str) -> None:
    assert moved("run.sh", before) == after
    assert moved("run.sh", after, to="nvidia", origin="ascend") == before


def test_a_device_for_an_option_that_nobody_knows_is_reported() -> None:
    assert rules("run.sh", "python a.py -d cuda:0") == [("JM121", "report", "cuda:0")]
    assert rules("run.sh", "python a.py --eval-device cuda") == [("JM121", "unsafe", "cuda")]


def test_the_agnostic_style_sets_both_variables_and_leaves_the_rest_working() -> None:
    before = (
        "export CUDA_VISIBLE_DEVICES=0\n"
        "mpirun -x CUDA_VISIBLE_DEVICES python a.py --device cuda\n"
        "docker run -e CUDA_VISIBLE_DEVICES=0 img\n"
        "echo $CUDA_VISIBLE_DEVICES\n"
    )
    after = moved("run.sh", before, style="agnostic", unsafe=True)
    assert after == (
        "export CUDA_VISIBLE_DEVICES=0 ASCEND_RT_VISIBLE_DEVICES=0\n"
        "mpirun -x CUDA_VISIBLE_DEVICES -x ASCEND_RT_VISIBLE_DEVICES python a.py --device cuda\n"
        "docker run -e CUDA_VISIBLE_DEVICES=0 -e ASCEND_RT_VISIBLE_DEVICES=0 img\n"
        "echo $CUDA_VISIBLE_DEVICES\n"
    )
    assert moved("run.sh", after, style="agnostic", unsafe=True) == after


def test_a_value_that_a_command_computes_is_not_written_twice() -> None:
    before = "export CUDA_VISIBLE_DEVICES=$(next_card)\n"
    assert moved("run.sh", before, style="agnostic", unsafe=True) == before
    assert [f.reason for f in found("run.sh", before, style="agnostic")] == [
        "the value is computed by a command"
    ]


def test_a_plain_monitor_call_is_replaced_and_a_query_reported() -> None:
    text = "nvidia-smi\nnvidia-smi --query-gpu=name --format=csv\nnvidia-smi | head\n"
    assert moved("run.sh", text, unsafe=True).startswith("npu-smi info\nnvidia-smi --query")
    tiers = [tier for _, tier, _ in rules("run.sh", text)]
    assert tiers == ["unsafe", "report", "report"]


def test_a_script_in_a_heredoc_waits_for_a_look() -> None:
    before = "cat > job.sh <<EOF\nexport CUDA_VISIBLE_DEVICES=0\nEOF\n"
    assert moved("run.sh", before) == before
    assert "ASCEND_RT" in moved("run.sh", before, unsafe=True)


def test_a_text_in_a_heredoc_stays() -> None:
    assert found("run.sh", "cat <<EOF\nrun with CUDA_VISIBLE_DEVICES=0 on cuda\nEOF\n") == []


def test_sudo_and_env_take_assignments() -> None:
    before = "sudo -E CUDA_VISIBLE_DEVICES=0 a\nnohup env CUDA_VISIBLE_DEVICES=1 b &\n"
    assert moved("run.sh", before) == before.replace("CUDA_", "ASCEND_RT_")


@pytest.mark.parametrize(
    "head", ["bash -c", "ssh node1", "sudo bash -lc", "eval", "docker exec x bash -c"]
)
def test_a_script_inside_quotes_waits_for_a_look(head: str) -> None:
    before = f"{head} 'export CUDA_VISIBLE_DEVICES=0; python a.py --device cuda # cuda'\n"
    assert moved("run.sh", before) == before
    after = before.replace("CUDA_V", "ASCEND_RT_V").replace("device cuda", "device npu")
    assert moved("run.sh", before, unsafe=True) == after
    assert len(found("run.sh", before)) == 2


def test_python_inside_a_script_is_moved_after_a_look() -> None:
    before = (
        "n=$(python -c 'import torch; print(torch.cuda.device_count())')  # 中文\n"
        "python - <<'PY'\nimport torch\nx = torch.zeros(1, device=\"cuda\")\nPY\n"
    )
    assert moved("run.sh", before) == before
    assert moved("run.sh", before, unsafe=True) == (
        "n=$(python -c 'import torch_npu; import torch; print(torch.npu.device_count())')  # 中文\n"
        "python - <<'PY'\nimport torch\nimport torch_npu\n"
        'x = torch.zeros(1, device="npu")\nPY\n'
    )


@pytest.mark.parametrize(
    "text",
    [
        'python -c "import torch; print($A, torch.cuda.x)"\n',
        "python - <<PY\nprint(torch.cuda.x, $A)\nPY\n",
        "python -c 'torch.cuda.x('\n",
    ],
)
def test_python_that_the_shell_completes_is_reported(text: str) -> None:
    assert [(rule, tier) for rule, tier, _ in rules("run.sh", text)] == [("JM900", "report")]


def test_an_empty_array_and_a_lone_redirection_have_no_words() -> None:
    assert found("run.sh", "missing=()\n> log.txt\n: ${A:=b}\n") == []


def test_unbalanced_quotes_turn_edits_into_reports() -> None:
    before = "echo 'open\npython a.py\n"
    before = f"export CUDA_VISIBLE_DEVICES=0\n{before}"
    assert moved("run.sh", before, unsafe=True) == before
    (finding,) = found("run.sh", before)
    assert "line 2" in str(finding.reason)


def test_card_requests_of_schedulers_and_containers() -> None:
    text = (
        "#SBATCH --gres=gpu:8\n#SBATCH --gres=gpu:a100:4\n#SBATCH --gpus-per-node=8\n"
        "docker run --gpus all x\nkubectl run x --limits=nvidia.com/gpu=1\n"
        "module load cuda/12.1\nray start --num-gpus=8\n"
    )
    assert rules("job.slurm", text) == [
        ("JM190", "unsafe", "gpu"),
        ("JM190", "report", "gpu:a100:4"),
        ("JM190", "report", "--gpus-per-node"),
        ("JM190", "unsafe", "--gpus all"),
        ("JM190", "unsafe", "nvidia.com/gpu"),
        ("JM190", "report", "cuda/12.1"),
        ("JM190", "report", "--num-gpus=8"),
    ]


def test_a_program_option_called_gpus_is_none_of_our_business() -> None:
    assert found("run.sh", "python train.py --gpus 2 --gpus-per-node 8\n") == []


def test_installs_of_the_vendors_packages() -> None:
    text = "pip install -r requirements.txt numpy flash-attn\napt-get install -y libcudnn8 gcc\n"
    assert rules("run.sh", text) == [
        ("JM191", "report", "flash-attn"),
        ("JM191", "report", "libcudnn8"),
    ]


def test_a_companion_that_is_there_is_not_added_again() -> None:
    line = "pip install torch==2.1.0 'torch-npu==2.1.0.*'\n"
    assert found("run.sh", line) == []


def test_windows_line_ends_and_a_missing_last_one_survive() -> None:
    before = (
        "#!/bin/sh\r\nexport CUDA_VISIBLE_DEVICES=0\r\n# 中文 cuda\r\npython a.py --device cuda"
    )
    after = moved("run.sh", before)
    assert after == before.replace("CUDA_V", "ASCEND_RT_V").replace("device cuda", "device npu")


def test_a_chip_that_keeps_the_device_name_changes_no_device() -> None:
    assert moved("run.sh", "python a.py --device cuda --backend nccl", to="hygon", unsafe=True) == (
        "python a.py --device cuda --backend nccl"
    )
