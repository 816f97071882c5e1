"""Short trials of a model before it is trained: does it do what the job takes for granted?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.run.train.models import text_part, unwrap

if TYPE_CHECKING:
    import torch

LENGTH = 12  # tokens of a document in the trial
# Rounding moves a logit by less than this share of the largest one; a document that is seen, or a
# place that is counted on, moves it by more.
FAILURES = (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError)
NOISE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.02}


def find_leak(model: Any, vocabulary: int) -> str | None:
    """Why documents in one row are not learned as if each stood alone; None: they are.

    Two documents share a row whose positions start again at the second, as packing writes it. The
    second one's logits must be those that it has alone, whatever the first one says.
    """
    import torch

    tokens_3L = draw_tokens(3, vocabulary)
    first, other, second = tokens_3L
    places_L = torch.arange(LENGTH)
    with quietly(model), torch.no_grad():
        try:
            alone = logits_of(model, [second], places_L)
            one = logits_of(model, [first, second], places_L.repeat(2))[LENGTH:]
            two = logits_of(model, [other, second], places_L.repeat(2))[LENGTH:]
        except FAILURES as error:
            return (
                f"a trial ended with {type(error).__name__}: {' '.join(str(error).split())[:160]}"
            )
    allowed = NOISE[str(alone.dtype).removeprefix("torch.")]
    size = float(alone.abs().max())
    seen, moved = float((one - two).abs().max()), float((one - alone).abs().max())
    if seen > allowed * size:
        return f"a document sees the one before it (its logits move by {seen / size:.1e})"
    if moved > allowed * size:
        return f"a document's place in the row counts (its logits move by {moved / size:.1e})"
    return None


def check_pass(model: Any, vocabulary: int) -> None:
    """`JoyError` where the model cannot even take one document by itself, on the CPU.

    Quantised weights are not tried: their kernels may want another device.
    """
    import torch

    if getattr(unwrap(model).config, "quantization_config", None) is not None:
        return
    with quietly(model), torch.no_grad():
        try:
            model(input_ids=draw_tokens(1, vocabulary), use_cache=False)
        except FAILURES as error:
            raise JoyError(
                f"the model cannot take one text: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:160]}",
                where="model",
                help="check the sizes in model.from_config, or in config.json of model.path",
            ) from None


def check_positions(model: Any, length: int) -> str | None:
    """A line where texts are longer than the model was made for.

    Raises `JoyError` where the model has no such positions.
    """
    import torch

    limit = getattr(text_part(unwrap(model).config), "max_position_embeddings", None)
    if not limit or length <= limit:
        return None
    said = f"data.max_length is {length}, and the model was made for {limit} positions"
    with quietly(model), torch.no_grad():
        try:
            logits_of(model, [torch.zeros(1, dtype=torch.long)], torch.tensor([length - 1]))
        except IndexError:  # a table of learned positions ends there
            raise JoyError(
                said, where="data.max_length", help=f"at most {limit}, or a model with more"
            ) from None
        except FAILURES:  # it takes no positions
            pass
    return said


def draw_tokens(count: int, vocabulary: int) -> torch.Tensor:
    """Random documents [count, LENGTH] of so many tokens."""
    import torch

    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, max(2, vocabulary), (count, LENGTH), generator=draw)


def logits_of(model: Any, documents: list[Any], places_L: torch.Tensor) -> torch.Tensor:
    """Logits [L, V] of one row."""
    import torch

    ids_1L, places_1L = torch.cat(documents)[None], places_L[None]
    output = model(input_ids=ids_1L, position_ids=places_1L, use_cache=False)
    found: torch.Tensor = output.logits[0]
    return found


@contextlib.contextmanager
def quietly(model: Any) -> Iterator[None]:
    """Without dropout, and without a trace in the numbers that training draws."""
    import torch

    was, state = model.training, torch.get_rng_state()
    model.eval()
    try:
        yield
    finally:
        model.train(was)
        torch.set_rng_state(state)


def check_router(settings: Any, model: Any, stages: int) -> str | None:
    """What of a job's wish for balanced experts has no effect, as a line for the user.

    Raises `JoyError` where the loss is asked for and pipeline stages would leave it out.
    """
    text = text_part(unwrap(model).config)
    asked = bool(getattr(text, "output_router_logits", False))
    if asked and stages > 1:
        raise JoyError(
            "pipeline stages do not add the router's loss", where="layout.pp",
            help="set output_router_logits to false, or use another layout",
        )  # fmt: skip
    if "router_aux_loss_coef" in settings and not asked:
        return "router_aux_loss_coef is not used: output_router_logits is false"
    return None
