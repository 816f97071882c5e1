"""YAML, JSON, TOML and INI: devices under keys that say so, variables, resources, images."""

from __future__ import annotations

import pytest

from joymigrate.rewrite.source import Unreadable
from tests.rewrite.readers.moved import found, moved, rules

SETTINGS = """\
# device: cuda
description: trains on cuda
model:
  device: cuda   # 设备 cuda
  device_type: "cuda:0"
  map_location: 'cuda'
  target: main.CUDACallback
  name: cuda
trainer: {backend: nccl, dist_backend: "cpu:gloo,cuda:nccl"}
half_precision_backend: cuda_amp
--distributed-backend: nccl
overrides: [trainer.device=cuda, model.name=cuda]
args: ["--device", "cuda"]
"""


def test_devices_move_under_keys_that_say_so_and_nothing_else_does() -> None:
    after = moved("conf/train.yaml", SETTINGS, unsafe=True)
    assert after == SETTINGS.replace("device: cuda   #", "device: npu   #").replace(
        '"cuda:0"', '"npu:0"'
    ).replace("'cuda'", "'npu'").replace("{backend: nccl", "{backend: hccl").replace(
        "cuda:nccl", "npu:hccl"
    ).replace("-backend: nccl", "-backend: hccl").replace(
        "trainer.device=cuda", "trainer.device=npu"
    ).replace('"--device", "cuda"', '"--device", "npu"')
    assert moved("conf/train.yaml", after, to="nvidia", origin="ascend") == SETTINGS


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a.json", '{"device": "cuda:0"}', '{"device": "npu:0"}'),
        ("a.jsonc", '{// cuda\n"device": "cuda",}', '{// cuda\n"device": "npu",}'),
        ("a.toml", "[t]\ndevice = 'cuda' # cuda\n", "[t]\ndevice = 'npu' # cuda\n"),
        ("a.toml", 'o = {device = "cuda"}\n', 'o = {device = "npu"}\n'),
        ("a.ini", "[t]\ndevice = cuda ; cuda\n", "[t]\ndevice = npu ; cuda\n"),
        ("a.cfg", "[t]\nbackend: nccl\n", "[t]\nbackend: hccl\n"),
        (".env", 'DEVICE="cuda"\n', 'DEVICE="npu"\n'),
        ("a.yaml", "- device: cuda\r\n- device: cuda", "- device: npu\r\n- device: npu"),
        ("a.yaml", "\ufeffdevice: cuda\n", "\ufeffdevice: npu\n"),
        ("a.yaml", "device: cuda\n---\ndevice: cuda\n", "device: npu\n---\ndevice: npu\n"),
        ("a.yaml", "a: &x {device: cuda}\nb: *x\n", "a: &x {device: npu}\nb: *x\n"),
        ("a.yaml", "x: !tag {device: cuda}\n", "x: !tag {device: npu}\n"),
    ],
)
def test_every_syntax_keeps_its_own_layout(path: str, before: str, after: str) -> None:
    assert moved(path, before) == after
    assert moved(path, after, to="nvidia", origin="ascend") == before


@pytest.mark.parametrize(
    ("path", "text", "place"),
    [
        ("a.yaml", "device: [cuda\nb: {\n", (2, 2)),
        ("a.json", '{"device": "cuda",\n "x" 1}', (2, 6)),
        ("a.json", '{"device": "cuda"', (1, 18)),
        ("a.toml", 'a = 1\ndevice = "cuda\n', (2, 15)),
    ],
)
def test_broken_syntax_has_a_place(path: str, text: str, place: tuple[int, int]) -> None:
    with pytest.raises(Unreadable) as caught:
        found(path, text)
    assert (caught.value.line, caught.value.column) == place


@pytest.mark.parametrize(
    "text",
    [
        '{"cuda_graph_request_count_map": null}',
        '{"help": "cuda", "comment": "device cuda"}',
        '{"model": "nvidia/x", "attn": "cuda_flash"}',
        '{"a": "\\u0063uda"}',
        "",
    ],
)
def test_names_and_descriptions_in_json_stay(text: str) -> None:
    assert found("a.json", text) == []


def test_an_escaped_device_is_reported() -> None:
    assert rules("a.json", '{"device": "\\u0063uda", "x": "cuda_amp", "backend": "gloo cuda"}') == [
        ("JM120", "report", '"\\u0063uda"')
    ]


def test_a_device_under_an_unknown_key_is_reported() -> None:
    assert rules("a.yaml", "platform: cuda\nmodel_device: cuda:1\n") == [
        ("JM121", "report", "cuda"),
        ("JM121", "unsafe", "cuda"),
    ]


POD = """\
spec:
  tolerations:
    - key: nvidia.com/gpu
  nodeSelector:
    nvidia.com/gpu.product: A100
  containers:
    - image: nvcr.io/nvidia/pytorch:24.01-py3
      command: [python, t.py, --device, cuda]
      env:
        - name: CUDA_VISIBLE_DEVICES
          value: "0"
        - name: MODE
          value: cuda
      resources:
        limits:
          nvidia.com/gpu: 8
"""


def test_a_pod_asks_for_the_targets_cards() -> None:
    after = moved("pod.yaml", POD, unsafe=True)
    assert after == POD.replace("key: nvidia.com/gpu", "key: huawei.com/Ascend910").replace(
        "nvidia.com/gpu: 8", "huawei.com/Ascend910: 8"
    ).replace("CUDA_VISIBLE", "ASCEND_RT_VISIBLE").replace("--device, cuda", "--device, npu")
    assert ("JM190", "report", "nvcr.io/nvidia/pytorch:24.01-py3") in rules("pod.yaml", POD)
    assert ("JM190", "report", "nvidia.com/gpu.product") in rules("pod.yaml", POD)


def test_both_variables_are_set_in_every_form_of_environment() -> None:
    forms = {
        "a.yaml": "env:\n  CUDA_VISIBLE_DEVICES: 0,1  # both\nb: 1\n",
        "b.yaml": "env:\n  - CUDA_VISIBLE_DEVICES=0\nb: 1\n",
        "c.yaml": "env: {CUDA_VISIBLE_DEVICES: 0}\n",
        "d.yaml": 'env:\n  - name: CUDA_VISIBLE_DEVICES\n    value: "0"\nb: 1\n',
        "a.json": '{"env": {\n  "CUDA_VISIBLE_DEVICES": "0"\n}}',
        "b.json": '{"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}',
        "a.toml": '[env]\nCUDA_VISIBLE_DEVICES = "0"\nb = 1\n',
        "a.env": "CUDA_VISIBLE_DEVICES=0\nB=1\n",
    }
    for path, before in forms.items():
        after = moved(path, before, style="agnostic", unsafe=True)
        assert after.count("ASCEND_RT_VISIBLE_DEVICES") == 1, path
        assert after.replace("ASCEND_RT_VISIBLE_DEVICES", "").count("CUDA_VISIBLE_DEVICES") == 1
        assert moved(path, after, style="agnostic", unsafe=True) == after, path


def test_a_helm_template_is_read_around_its_holes() -> None:
    before = (
        "{{- if .Values.gpu }}\nlimits:\n  nvidia.com/gpu: {{ .Values.n }}\n{{- end }}\n"
        "image: {{ .Values.image }}\ndevice: cuda\n"
    )
    after = moved("templates/job.yaml", before, unsafe=True)
    assert after == before.replace("nvidia.com/gpu", "huawei.com/Ascend910").replace(
        "device: cuda", "device: npu"
    )


def test_a_workflows_commands_wait_for_a_look() -> None:
    before = (
        "jobs:\n  a:\n    steps:\n      - name: run on cuda\n        run: |\n"
        "          export CUDA_VISIBLE_DEVICES=0\n          python t.py --device cuda\n"
    )
    assert moved(".github/workflows/t.yml", before) == before
    assert moved(".github/workflows/t.yml", before, unsafe=True) == before.replace(
        "CUDA_VISIBLE", "ASCEND_RT_VISIBLE"
    ).replace("--device cuda", "--device npu")


def test_deepspeeds_settings_are_known_by_their_keys() -> None:
    text = (
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, '
        '"sparse_attention": {"mode": "fixed"}, '
        '"optimizer": {"params": {"comm_backend_name": "nccl"}}}'
    )
    assert rules("ds.json", text) == [
        ("JM192", "report", '"sparse_attention"'),
        ("JM130", "safe", "nccl"),
    ]
    assert found("other.json", '{"sparse_attention": 1, "bf16": 2}') == []


def test_accelerates_kind_of_run() -> None:
    before = "distributed_type: MULTI_GPU\nuse_cpu: false\n"
    assert moved("a.yaml", before, unsafe=True) == before.replace("MULTI_GPU", "MULTI_NPU")
    assert found("a.yaml", "distributed_type: FSDP\n") == []


def test_slots_of_a_hostfile_are_a_question() -> None:
    assert rules("hostfile", "w1 slots=8\n# w2 slots=8\n") == [("JM192", "report", "slots=8")]


def test_compose_runtimes_and_drivers_are_reported() -> None:
    text = "services: {a: {runtime: nvidia, deploy: {devices: [{driver: nvidia}]}}}\n"
    assert [tier for _, tier, _ in rules("compose.yaml", text)] == ["report", "report"]


def test_every_value_of_a_device_map_is_a_device() -> None:
    before = "device_map: {'': 'cuda:0', lm_head: cpu}\n"
    assert moved("a.yaml", before) == "device_map: {'': 'npu:0', lm_head: cpu}\n"


def test_a_class_path_of_the_device_module_waits_for_a_look() -> None:
    before = "scaler: {_target_: torch.cuda.amp.GradScaler}\nother: main.CUDACallback\n"
    assert moved("a.yaml", before) == before
    assert moved("a.yaml", before, unsafe=True) == before.replace("torch.cuda", "torch.npu")


def test_a_device_inside_an_expression_is_reported() -> None:
    assert rules("a.yaml", "device: ${oc.env:DEVICE,cuda}\n") == [
        ("JM121", "report", "${oc.env:DEVICE,cuda}")
    ]


def test_the_matrix_of_a_workflow_stays() -> None:
    text = "jobs:\n  build:\n    strategy:\n      matrix:\n        include: [{device: cuda}]\n"
    assert moved(".github/workflows/docker.yml", text, unsafe=True) == text
    assert moved("conf/train.yml", "device: cuda\n") == "device: npu\n"


@pytest.mark.parametrize(
    ("path", "text", "before"),
    [
        ("train.yaml", "trainer:\n  accelerator: gpu\n", "gpu"),
        ("train.yaml", "load_in_4bit: true\n", "true"),
        ("model.json", '{"attn_implementation": "flash_attention_2"}', '"flash_attention_2"'),
        ("run.sh", "python train.py --optim adamw_bnb_8bit\n", "adamw_bnb_8bit"),
        ("run.sh", "python train.py --load_in_4bit --lr 1\n", "--load_in_4bit"),
    ],
)
def test_well_known_settings_are_reported_with_their_advice(
    path: str, text: str, before: str
) -> None:
    assert rules(path, text) == [("JM192", "report", before)]
    assert found(path, text)[0].reason


def test_other_values_of_well_known_settings_are_no_sites() -> None:
    text = "trainer: {accelerator: cpu}\nload_in_4bit: false\nattn_implementation: sdpa\n"
    assert rules("train.yaml", text) == []
