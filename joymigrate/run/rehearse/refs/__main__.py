"""`python -m joymigrate.run.rehearse.refs`: which of the vendor's operators have a reference.

Prints a markdown table, which is also a page of the documentation.
"""

from __future__ import annotations

import os

from joymigrate.run.rehearse.refs import list_references, signatures

HEAD = """# Operators of the rehearsal device

An operator with a reference is computed on the rehearsal device; one without fails with the name of
the chip kernel that it would call.
The list is that of torch_npu 2.13.0: its own operators (`npu::`), the operators of torch that have
no CPU kernel (`aten::`), and those of the Ascend Transformer Boost library (`atb::`).
"""
# Why an operator has none, by the beginning of its name; the first that fits counts.
REASONS: list[tuple[tuple[str, ...], str]] = [
    (
        (
            "npu_format_cast",
            "_npu_format_cast",
            "get_npu_format",
            "get_storage_size",
            "empty_with",
            "unsafe_empty",
            "npu_change_data_ptr",
            "copy_memory_",
            "npu_prefetch",
        ),
        "memory and formats: the vendor's own code runs",
    ),
    (("obfuscation", "npu_hans"), "needs a service outside torch"),
    (
        (
            "npu_attention_to_ffn",
            "npu_ffn_to_attention",
            "npu_ffn_worker",
            "ffn_worker",
            "attention_worker",
            "npu_attention_worker",
        ),
        "its context is memory that the servers of another process write",
    ),
    (("_npu_silent_check",), "what it counts as a fault of the hardware is not public"),
    (("_quantize_per",), "torch's quantised dtypes are not simulated"),
    (("npu_mla_preprocess",), "its weights come in the chip's own block order"),
    (
        ("npu_quant_max", "npu_batch_gather_matmul"),
        "two public sources of the vendor contradict each other",
    ),
    (("npu_grouped_dynamic",), "no document gives the places of the groups' scales"),
    (("npu_swiglu_group_quant",), "the package offers it for hifloat8 alone, which torch lacks"),
    (
        (
            "npu_batch_nms",
            "npu_multi_head_attention",
            "npu_fused_attention_score",
            "npu_grid_assign_positive",
            "npu_ps_roi_pooling",
            "npu_random_choice_with_mask",
        ),
        "the vendor announces its end and no longer maintains its kernel",
    ),
    (("npu_apply_adam", "npu_bert_apply"), "the vendor's own code refuses the functional form"),
]


def reason_of(name: str) -> str:
    """Why `name` has no reference."""
    base = name.split("::")[1]
    for beginnings, reason in REASONS:
        if base.startswith(beginnings):
            return reason
    if "infer_output" in base:
        return "makes empty tensors: the vendor's own code runs"
    if base == "npu_matmul_compress_dequant":
        return "its weights are compressed in a format that no public document describes"
    return "not written yet"


def table() -> str:
    """The whole document."""
    references = list_references()
    names = sorted(signatures())
    covered = [name for name in names if name in references]
    rows = ["| operator | source of its semantics |", "|---|---|"]
    for name in covered:
        home = references[name].function.__module__.rpartition(".")[2] + ".py"
        rows.append(f"| `{name}` | `{home}`: {references[name].source} |")
    missing = ["| operator | why |", "|---|---|"]
    missing += [f"| `{n}` | {reason_of(n)} |" for n in names if n not in references]
    return "\n".join(
        [
            HEAD,
            f"{len(covered)} of {len(names)} have a reference.\n",
            "## With a reference\n",
            *rows,
            "\n## Without\n",
            *missing,
            "",
        ]
    )


if __name__ == "__main__":
    # Beside torch_npu and without CANN, torch can't be imported unless told to leave it alone.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    print(table(), end="")
