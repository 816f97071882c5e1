"""What counts as a backend's failure, and what does not.

A failure: no connection, no first byte or no further byte in time, 5xx, a redirect, a wrong content
type, an error object after 200, a stream without its end, invalid JSON. A client that went away is
no failure, nor is any content (it is compared, see `experiment` and `answers`). Back-pressure (429,
503 with Retry-After) is neither; it is retried elsewhere.
A 4xx or an empty answer is judged by a witness: the other backend is asked the same. Where that
answers, the first one failed; where it says the same, the question was at fault.
"""

from __future__ import annotations

from collections.abc import Mapping

CONNECT = "connect"
RESET = "reset"
FIRST_BYTE = "first_byte_timeout"
IDLE = "idle_timeout"
TOTAL = "total_timeout"
ERROR_OBJECT = "error_after_200"
TRUNCATED = "truncated"
MISSING_FINISH = "missing_finish"
INVALID_JSON = "invalid_json"
OVERSIZED = "oversized"
EMPTY = "empty_output"  # the other backend had something to say
CONTENT_TYPE = "content_type"
ODD = "odd_answer"  # JSON of another shape than this API's, which the primary's answers do not have
NO_BODY = "no_body"
OWN = "gateway"  # not the backend's: no descriptor, port, route or name here, or we stood still
CUT_OFF = (CONNECT, RESET, TRUNCATED)  # what a restart does to all streams at once
ENDED_EARLY = (RESET, TRUNCATED)  # of a connection: the same server may well answer the next time
KINDS = (
    CONNECT,
    RESET,
    FIRST_BYTE,
    IDLE,
    TOTAL,
    ERROR_OBJECT,
    TRUNCATED,
    MISSING_FINISH,
    INVALID_JSON,
    OVERSIZED,
    EMPTY,
    CONTENT_TYPE,
    ODD,
    NO_BODY,
)


class BackendFailure(Exception):
    """A backend's attempt came to nothing. `kind` is one of `KINDS` or `status_<code>`."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail


def of_status(status: int, *, own_key: bool = False) -> str | None:
    """The failure that a status line means by itself; a 4xx other than for our own key is judged
    by a witness (`is_refusal`)."""
    redirect = 300 <= status < 400
    locked = own_key and status in (401, 403, 407)
    return f"status_{status}" if status >= 500 or redirect or locked else None


# Why a text ended that did not end well: the server gave up.
GAVE_UP = ("error", "abort", "aborted", "cancelled")


def is_refusal(status: int) -> bool:
    """Whether the backend refused the question, for a reason that may be its own."""
    return 400 <= status < 500 and status != 429


def is_back_pressure(status: int, headers: Mapping[str, str]) -> bool:
    """A backend that asks to be spared for a while has not failed."""
    return status == 429 or (status == 503 and "Retry-After" in headers)


RULERS = "-=_*#~.+| \t\r\n"  # people ask for tables and rulers
REPEATS = 32  # equal pieces in a row
BANGS = 16  # token 0 of a widespread vocabulary is "!": what an argmax over NaN prints
BAD_SHARE = 0.2  # of replacement characters
BAD_LENGTH = 20  # characters before that share is judged


TAIL = 480  # a loop runs to the end of the text: its last characters show it
PERIODS = range(1, 13)


def is_garbage(text: str) -> bool:
    """Whether a text is output that models seldom mean."""
    if "!" * BANGS in text:
        return True
    bad = text.count("\ufffd")
    if bad and len(text) >= BAD_LENGTH and bad >= BAD_SHARE * len(text):
        return True
    end = text[-TAIL:].rstrip()
    return any(ends_in_loop(end, period) for period in PERIODS)


def ends_in_loop(text: str, period: int) -> bool:
    """Whether `text` ends in `REPEATS` copies of its last `period` characters."""
    piece = text[-period:]
    return bool(piece.strip(RULERS)) and text.endswith(piece * REPEATS)
