"""`resume`: goes on where another engine's answer broke off, as if it had made the whole.

    {…the request as it was…, "resume": {"prompt_ids": […], "output_ids": […], "text": "…"}}

Everything of the request counts as before: grammars, penalties, `min_tokens`, seeds, stop strings
and `max_tokens` see the output so far. Where this engine would not have said the same tokens, or
reads another prompt out of the request, it refuses (409): nobody gets a text of two halves. The
answer has the header `X-Joymigrate-Resumed`; a server without it has not understood.
"""

from __future__ import annotations

from dataclasses import replace

from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.types import Resume, Sampling
from joymigrate.run.serve.web.errors import Refusal

MARK = "X-Joymigrate-Resumed"
OURS = "X-Joymigrate-Engine"  # on every answer: who asks for our health learns that we resume


def read(fields: Fields) -> tuple[tuple[int, ...], Resume] | None:
    """The prompt's ids and what was generated, or None; raises `Refusal`."""
    given = fields.table_of("resume")
    if given is None:
        return None
    inner = Fields(given, "resume.")
    prompt = tuple(inner.wholes("prompt_ids"))
    ids = tuple(inner.wholes("output_ids"))
    text = inner.text("text")
    inner.close()
    if not prompt:
        raise Refusal(400, "resume.prompt_ids are missing", param="resume.prompt_ids")
    return prompt, Resume(ids, text)


def checked(
    asked: tuple[tuple[int, ...], Resume] | None, prompts: list[list[int]], sampling: Sampling
) -> tuple[Resume | None, Sampling]:
    """What to resume, and a sampling that repeats nothing; raises `Refusal` where this engine
    reads another prompt."""
    if asked is None:
        return None, sampling
    ids, resume = asked
    if len(prompts) != 1 or sampling.n != 1:
        raise Refusal(400, "one prompt with one choice is resumed", param="resume")
    if tuple(prompts[0]) != ids:
        raise Refusal(
            409, "cannot resume: this engine reads other tokens out of the prompt",
            code="resume_differs", param="resume.prompt_ids",
        )  # fmt: skip
    return resume, replace(sampling, prompt_logprobs=None)


def behind(resume: Resume | None, echo: str) -> Resume | None:
    """The same without the part of the text that repeats the prompt; raises `Refusal`."""
    if resume is None or not echo or resume.text is None:
        return resume
    if not resume.text.startswith(echo):
        raise Refusal(409, "cannot resume: the prompt was repeated in other words", param="resume")
    return replace(resume, text=resume.text[len(echo) :])


def headers(resume: Resume | None) -> dict[str, str]:
    """What a stream says of itself."""
    return {MARK: str(len(resume.ids))} if resume is not None else {}
