"""Faults over the kinds of strides, state, update, loss, data, mode and precision, and clean runs.

Written before the code that judges them was read: program, fault, the place and the cause that a
reader would name (regular expressions on the place; on the verdict's cause, None where a place
is all there is to say).
"""

from __future__ import annotations

FAULTS: tuple[tuple[str, str, str, str, str | None], ...] = (
    ("strides", "mixer", "elu", r"act", r"elu|stride|layout"),
    ("strides", "mixer", "where", r"gate", r"where|stride|layout"),
    ("strides", "mixer", "offset", r"squash", r"tanh|stride|layout|offset"),
    ("strides", "mixer", "sort", r"rank", r"sort|stride|layout"),
    ("strides", "mixer", "elu-back", r"act", r"elu|stride|layout"),
    ("strides", "mixer", "addcdiv", r"mix", r"addcdiv|update|stride|layout"),
    ("strides", "mixer", "lerp", r"mix", r"lerp|update|stride|layout"),
    ("strides", "mixer", "channels", r"act", r"silu|stride|layout"),
    ("strides", "mixer", "expand", r"scale", r"mul|stride|layout"),
    ("state", "states", "rate", r"seen", r"0\.01|rate"),
    ("state", "states", "grid", r"seen", r"128|127"),
    ("state", "states", "keep", r"book", r"0\.95|0\.05"),
    ("state", "states", "momentum", r"norm", r"momentum|0\.02"),
    (
        "state",
        "states",
        "ema",
        r"average|lerp|body|seen|norm|head|outside|buffer|copy",
        r"0\.01|lerp",
    ),
    ("mode", "states", "left", r"", r"eval|train"),
    ("update", "updates", "swap", r"Lion|head|2|third|optim", r"0\.99|mul"),
    ("update", "updates", "centred", r"RMSprop|body|1|second|optim", r"centered"),
    ("update", "updates", "plan", r"", r"step_size|lr"),
    ("update", "updates", "decay", r"weight|bias|optim|AdamW", r"decay|mul_"),
    ("update", "updates", "clip", r"", r"clip|0\.1|0\.05|max_norm"),
    ("loss", "updates", "accumulate", r"loss", r"div|/ ?2|half|twice|factor"),
    ("loss", "words", "smooth", r"loss", r"label_smoothing"),
    ("loss", "words", "ignore", r"loss", r"ignore_index"),
    ("loss", "words", "count", r"loss", r"count|divi|72|54|numel|sum"),
    ("mode", "words", "drop", r"drop", r"0\.2|dropout"),
    ("forward", "words", "score", r"blocks", r"pow|mul|-0\.4|0\.32|factor"),
    ("forward", "words", "clamp", r"blocks", r"clamp"),
    ("forward", "words", "position", r"place|^$|model", r"add|position|1"),
    ("data", "words", "data", r"", r"batch|data|order|input|getitem"),
    ("data", "words", "shift", r"", r"shape|input|batch|slice"),
    ("state", "resume", "stale", r"0|again|weight|loaded", r"weights"),
    ("state", "resume", "cold", r"", None),
    ("precision", "words", "autocast", r"", r"bfloat16|autocast|precision"),
    ("precision", "words", "half", r"blocks", r"float16|half"),
    ("forward", "sampler", "betas", r"", r"0\.03|linspace"),
    ("forward", "sampler", "unclipped", r"", r"clamp"),
)

CLEAN: tuple[tuple[str, str], ...] = (
    ("mixer", "none"),
    ("mixer", "noise"),
    ("mixer", "threads"),
    ("mixer", "foreach"),
    ("states", "none"),
    ("states", "noise"),
    ("updates", "none"),
    ("updates", "noise"),
    ("words", "noise"),
    ("words", "fill"),
    ("words", "wrapped"),
    ("words", "loaded"),
    ("resume", "none"),
    ("resume", "noise"),
    ("sampler", "none"),
    ("sampler", "noise"),
)
