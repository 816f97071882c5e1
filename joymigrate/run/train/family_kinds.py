"""The kinds of model families that training knows."""

from __future__ import annotations

# kind → mapping of transformers, Auto class, the task here that trains it (None: rendered engines)
KINDS: dict[str, tuple[str, str, str | None]] = {
    "llm": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM", "sft"),
    "multimodal": (
        "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
        "AutoModelForImageTextToText",
        "image-text",
    ),
    "encoder": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModelForMaskedLM", "masked-lm"),
    "seq2seq": (
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        "AutoModelForSeq2SeqLM",
        "seq2seq",
    ),
    "image": (
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        "AutoModelForImageClassification",
        "image-classification",
    ),
}
TEXT_TO_IMAGE = "text-to-image"
RECOMMENDATION = "recommendation"
ALL_KINDS = (*KINDS, TEXT_TO_IMAGE, RECOMMENDATION)
