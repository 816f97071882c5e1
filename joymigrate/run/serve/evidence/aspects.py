"""The aspects in which two answers to one question are compared, and what they are in words."""

from __future__ import annotations

STATUS, EMPTY, REFUSAL, SHORTER, LONGER = "status", "empty", "refusal", "shorter", "longer"
TEXT, TASK, FORMAT, LEAK, BROKEN = "text", "task", "format", "leak", "broken"
LOOPS, LATE, UNLIKELY = "loops", "late", "unlikely"
SLOW, FIRST, BETWEEN, TAIL = "slow", "first", "between", "tail"
CANNED, SAMPLING = "canned", "sampling"
NAME, COUNTS, FINISH, SCORES = "name", "counts", "finish", "scores"
# Seen on one answer: its side is wrong.
MARKS = (STATUS, EMPTY, REFUSAL, FORMAT, LEAK, BROKEN, LOOPS, TASK)
# The fields of a chat or completion answer that clients read, and what their lack is. The primary's
# answers are the measure: what they have, the standby's have to have.
FIELDS = {
    "id": "have no identifier",
    "object": "do not say what kind of object they are",
    "created": "have no time",
    "model": "name no model",
    "usage": "count no tokens, or none where there are some, or add them up wrongly",
    "index": "number their choices wrongly",
    "role": "are not said to be the assistant's",
    "logprobs": "leave out log probabilities that were asked for, or have impossible ones",
    "top_logprobs": "leave out the likeliest tokens that were asked for",
    "call_ids": "have no tool calls with an identifier of their own each",
    "reasoning": "have no reasoning beside the answer",
    "echo": "do not repeat the prompt, which was asked for",
    "wishes": "go against the request (a stop string in the text, more tokens than asked for, tool "
    "calls against tool_choice or their schema)",
}
ACCOUNTS = (NAME, COUNTS, FINISH, SCORES)  # the two differ in what they say beside the text
OPEN = (
    SHORTER,
    LONGER,
    TEXT,
    LATE,
    UNLIKELY,
    CANNED,
    SAMPLING,
    *ACCOUNTS,
)  # the two differ: either may be wrong
TIMES = (SLOW, FIRST, BETWEEN, TAIL)  # they pause a rollout
ASPECTS = (*MARKS, *FIELDS, *OPEN, *TIMES)
TOLERABLE = (*FIELDS, CANNED, SAMPLING, *ACCOUNTS)  # what a plan may leave out of the judgement
WORDS = {
    STATUS: "refused what the other backend answers",
    EMPTY: "were empty where the other's had text",
    REFUSAL: "declined where the other helps",
    FORMAT: "had another shape than was asked for (JSON, fields) where the other's were right",
    LEAK: "show marks of the model's template (<|im_end|>, </s>) where the other's do not",
    BROKEN: "have characters that could not be decoded (U+FFFD) where the other's have none",
    LOOPS: "repeat one piece again and again where the other's do not",
    LATE: "differ from the primary's late in the text, and the primary does not find them likely",
    UNLIKELY: "go on as the primary, asked for a score, finds unlikely",
    TASK: "failed the task that the other's passed",
    SHORTER: "had less than half the primary's length",
    LONGER: "had more than twice the primary's length",
    TEXT: "differ from the primary's early in the text",
    CANNED: "are those that it gave to other questions, to which the primary's differ",
    SAMPLING: "repeat themselves where the primary's do not (no seed), or the reverse (a seed)",
    SLOW: "took much longer than the primary's",
    FIRST: "began much later than the primary's",
    BETWEEN: "had much longer pauses between tokens than the primary's",
    TAIL: "took much longer than the primary's slowest hundredth",
    NAME: "name another model than was asked for, and than the primary names",
    COUNTS: "count the tokens of the same prompt or text otherwise than the primary",
    FINISH: "end for another reason than the primary's equal texts",
    SCORES: "give equal tokens log probabilities that are far from the primary's",
    **{name: f"{words}, unlike the primary's" for name, words in FIELDS.items()},
}
