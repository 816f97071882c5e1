"""`resume`: goes on where another engine's answer broke off, as if it had made the whole.

    {…the request as it was…, "resume": {"prompt_ids": […], "output_ids": […], "text": "…"}}

With `n` choices `"choices": [{"output_ids": […], "text": "…"}, null, …]` stands instead of the
last two, one entry for each, null for one of which no event was seen. A choice that had ended
ends here once more. Several prompts are `"prompts": [[…], null, …]` instead of `prompt_ids`, null
for one of which no event was seen; their choices follow one another. `"tool_calls": [{"name": …,
"arguments": …}]` beside a text are the calls that were given out, the last one as far as it came.

Everything of the request counts as before: grammars, penalties, `min_tokens`, seeds, stop strings
and `max_tokens` see the output so far. Where this engine would not have said the same tokens, or
reads another prompt out of the request, it refuses (409): nobody gets a text of two halves. The
answer has the header `X-Joymigrate-Resumed`; a server without it has not understood.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joymigrate.run.serve.engine.http.fields import Fields, is_whole
from joymigrate.run.serve.engine.types import Resume, Sampling
from joymigrate.run.serve.web.errors import HttpRefusal

MARK = "X-Joymigrate-Resumed"
OURS = "X-Joymigrate-Engine"  # on every answer: who asks for our health learns that we resume
Resumes = tuple[Resume | None, ...]  # one a choice; none where nothing is resumed


Prompts = tuple[tuple[int, ...] | None, ...]


def read(fields: Fields) -> tuple[Prompts, Resumes] | None:
    """The prompts' ids and what was generated, or None; raises `HttpRefusal`."""
    given = fields.table_of("resume")
    if given is None:
        return None
    inner = Fields(given, "resume.")
    prompts: Prompts = (
        several_prompts(inner.raw("prompts"))
        if "prompts" in given
        else (tuple(inner.wholes("prompt_ids")),)
    )
    choices: Resumes = (
        several(inner.raw("choices")) if "choices" in given else (parse_choice(inner),)
    )
    inner.close()
    if not all(ids is None or ids for ids in prompts):
        raise HttpRefusal(400, "resume.prompt_ids are missing", param="resume.prompt_ids")
    return prompts, choices


def several_prompts(raw: object) -> Prompts:
    """The ids of each prompt; raises `HttpRefusal`."""
    if not isinstance(raw, list) or not all(one is None or is_ids(one) for one in raw):
        raise HttpRefusal(
            400, "resume.prompts is a list of lists of token ids and nulls, one a prompt",
            code="invalid_type", param="resume.prompts",
        )  # fmt: skip
    return tuple(None if one is None else tuple(one) for one in raw)


def is_ids(value: object) -> bool:
    """Whether a value is a list of token ids."""
    return isinstance(value, list) and all(map(is_whole, value))


def several(raw: object) -> Resumes:
    """What was generated of each choice; raises `HttpRefusal`."""
    if not isinstance(raw, list) or not all(one is None or isinstance(one, dict) for one in raw):
        raise HttpRefusal(
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
    calls = [
        (str(inner.required("name")), inner.text("arguments") or "")
        for inner in (
            Fields(one if isinstance(one, dict) else {}, f"{fields.where}tool_calls[{place}].")
            for place, one in enumerate(fields.listed("tool_calls") or ())
        )
    ]
    return Resume(tuple(fields.wholes("output_ids")), fields.text("text"), tuple(calls))


def check_resumes(
    asked: tuple[Prompts, Resumes] | None, prompts: list[list[int]], sampling: Sampling
) -> Resumes:
    """What to resume; raises `HttpRefusal` where this engine reads another prompt."""
    if asked is None:
        return ()
    known, choices = asked
    if len(prompts) != len(known) or sampling.n * len(prompts) != len(choices):
        raise HttpRefusal(
            400, "as many prompts and choices are resumed as the request asks for", param="resume"
        )
    if any(
        ids is not None and ids != tuple(here) for ids, here in zip(known, prompts, strict=True)
    ):
        raise HttpRefusal(
            409, "cannot resume: this engine reads other tokens out of the prompt",
            code="resume_differs", param="resume.prompt_ids",
        )  # fmt: skip
    return choices


def of_prompt(choices: Resumes, sampling: Sampling) -> tuple[Resumes, Sampling]:
    """What to resume of one prompt, nothing where none of its choices had begun, and a sampling
    that repeats nothing; raises `HttpRefusal`."""
    if not any(choices):
        return (), sampling
    if sampling.prompt_logprobs is not None and choices[0] is None:
        raise HttpRefusal(
            409, "cannot resume: the prompt's log probabilities were not given out",
            code="resume_differs", param="resume.choices",
        )  # fmt: skip
    return choices, replace(sampling, prompt_logprobs=None)


def behind(choices: Resumes, *echoes: str) -> Resumes:
    """The same without the part of each text that repeats its prompt; raises `HttpRefusal`."""
    each = len(choices) // len(echoes)
    return tuple(one and without(one, echoes[i // each]) for i, one in enumerate(choices))


def without(resume: Resume, echo: str) -> Resume:
    """One of them."""
    if not echo or resume.text is None:
        return resume
    if not resume.text.startswith(echo):
        raise HttpRefusal(
            409, "cannot resume: the prompt was repeated in other words", param="resume"
        )
    return replace(resume, text=resume.text[len(echo) :])


def headers(choices: Resumes) -> dict[str, str]:
    """What a stream says of itself."""
    return {MARK: str(sum(len(one.ids) for one in choices if one))} if choices else {}


def remaining(
    given: Resume, words: str, calls: list[dict[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    """Of the first words and calls of a resumed answer those that nobody has. Raises
    `HttpRefusal`."""
    whole: dict[int, tuple[str, str]] = {}
    for call in calls:
        function, (name, arguments) = call["function"], whole.get(call["index"], ("", ""))
        name = function.get("name") or name
        whole[call["index"]] = (name, arguments + function["arguments"])
    rest = []
    for index, (name, arguments) in enumerate(given.calls):
        here = whole.get(index, ("", ""))
        if name != here[0] or not here[1].startswith(arguments):
            raise differs("tool_calls")
        if here[1] != arguments:
            rest.append({"index": index, "function": {"arguments": here[1][len(arguments) :]}})
    if not words.startswith(given.text or ""):
        raise differs("text")
    fresh = [call for call in calls if call["index"] >= len(given.calls)]
    return words[len(given.text or "") :], rest + fresh


def differs(what: str) -> HttpRefusal:
    """The refusal to go on behind something else."""
    return HttpRefusal(
        409, "cannot resume: here the answer so far is another one", code="resume_differs",
        param=f"resume.{what}",
    )  # fmt: skip
