"""`resume`: goes on where another engine's answer broke off, as if it had made the whole.

    {…the request as it was…, "resume": {"prompt_ids": […], "output_ids": […], "text": "…"}}

With `n` choices `"choices": [{"output_ids": […], "text": "…"}, null, …]` stands instead of the
last two, one entry for each, null for one of which no event was seen. A choice that had ended
ends here once more.

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
Resumes = tuple[Resume | None, ...]  # one a choice; none where nothing is resumed


def read(fields: Fields) -> tuple[tuple[int, ...], Resumes] | None:
    """The prompt's ids and what was generated, or None; raises `Refusal`."""
    given = fields.table_of("resume")
    if given is None:
        return None
    inner = Fields(given, "resume.")
    prompt = tuple(inner.wholes("prompt_ids"))
    choices: Resumes = (
        several(inner.raw("choices")) if "choices" in given else (parse_choice(inner),)
    )
    inner.close()
    if not prompt:
        raise Refusal(400, "resume.prompt_ids are missing", param="resume.prompt_ids")
    return prompt, choices


def several(raw: object) -> Resumes:
    """What was generated of each choice; raises `Refusal`."""
    if not isinstance(raw, list) or not all(one is None or isinstance(one, dict) for one in raw):
        raise Refusal(
            400, "resume.choices is a list of objects and nulls, one a choice",
            code="invalid_type", param="resume.choices",
        )  # fmt: skip
    made: list[Resume | None] = []
    for index, one in enumerate(raw):
        if one is None:
            made.append(None)
            continue
        inner = Fields(one, f"resume.choices[{index}].")
        made.append(parse_choice(inner))
        inner.close()
    return tuple(made)


def parse_choice(fields: Fields) -> Resume:
    """What was generated of one choice."""
    return Resume(tuple(fields.wholes("output_ids")), fields.text("text"))


def checked(
    asked: tuple[tuple[int, ...], Resumes] | None, prompts: list[list[int]], sampling: Sampling
) -> tuple[Resumes, Sampling]:
    """What to resume, and a sampling that repeats nothing; raises `Refusal` where this engine
    reads another prompt."""
    if asked is None:
        return (), sampling
    ids, choices = asked
    if len(prompts) != 1 or sampling.n != len(choices):
        raise Refusal(
            400, "one prompt is resumed, with as many choices as it asks for", param="resume"
        )
    if tuple(prompts[0]) != ids:
        raise Refusal(
            409, "cannot resume: this engine reads other tokens out of the prompt",
            code="resume_differs", param="resume.prompt_ids",
        )  # fmt: skip
    if sampling.prompt_logprobs is not None and choices[0] is None:
        raise Refusal(
            409, "cannot resume: the prompt's log probabilities were not given out",
            code="resume_differs", param="resume.choices",
        )  # fmt: skip
    return choices, replace(sampling, prompt_logprobs=None)


def behind(choices: Resumes, echo: str) -> Resumes:
    """The same without the part of each text that repeats the prompt; raises `Refusal`."""
    return tuple(one and without(one, echo) for one in choices)


def without(resume: Resume, echo: str) -> Resume:
    """One of them."""
    if not echo or resume.text is None:
        return resume
    if not resume.text.startswith(echo):
        raise Refusal(409, "cannot resume: the prompt was repeated in other words", param="resume")
    return replace(resume, text=resume.text[len(echo) :])


def headers(choices: Resumes) -> dict[str, str]:
    """What a stream says of itself."""
    return {MARK: str(sum(len(one.ids) for one in choices if one))} if choices else {}
