"""Teacher-forced scoring: what the primary finds likely of a text that parts from its own."""

from __future__ import annotations

from typing import Any

from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.scoring import FAR_GAP, mean_gap, scoring_body
from joymigrate.run.serve.web.apis import CHAT, MESSAGES, TEXT


def row(own: float, best: float, text: str) -> dict[str, Any]:
    rows = {"5": {"logprob": own, "decoded_token": text}}
    return rows | ({"6": {"logprob": best, "decoded_token": "x"}} if best > own else {})


def test_a_near_tie_is_likely_and_a_wrong_text_is_not() -> None:
    early = [None, row(-9.0, -0.1, "prompt")]
    near = [*early, row(-0.8, -0.7, " hi"), row(-0.1, -0.1, " there")]
    wrong = [*early, row(-8.0, -0.1, " hi"), row(-9.0, -0.2, " zxq")]
    for rows, likely in ((near, True), (wrong, False)):
        for answer in ({"prompt_logprobs": rows}, {"choices": [{"prompt_logprobs": rows}]}):
            gap = mean_gap(answer, 7)
            assert gap is not None
            assert (gap <= FAR_GAP) == likely


def test_a_likeliest_token_that_is_left_out_is_not_taken_for_the_own_one() -> None:
    def alone(own: float, rank: int) -> dict[str, Any]:
        return {"5": {"logprob": own, "rank": rank, "decoded_token": " word"}}

    tie = mean_gap({"prompt_logprobs": [None, alone(-0.75, 2), alone(-0.05, 1)]}, 10)
    wrong = mean_gap({"prompt_logprobs": [None, alone(-0.75, 2), *[alone(-11.0, 4000)] * 4]}, 25)
    assert tie is not None
    assert tie < 0.1
    assert wrong is not None
    assert wrong > FAR_GAP


def test_a_server_that_does_not_say_so_is_not_believed() -> None:
    for answer in ({}, {"choices": []}, {"prompt_logprobs": [None]}, {"prompt_logprobs": "a"}):
        assert mean_gap(answer, 9) is None


def test_the_answer_is_scored_behind_its_question() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
    asked = scoring_body(GatewayCall(CHAT, "POST", "/", {}, b"", body, 0.0), "a")
    assert asked is not None
    assert asked["messages"][-1] == {"role": "assistant", "content": "a"}
    assert (asked["continue_final_message"], asked["max_tokens"]) == (True, 1)
    text = scoring_body(GatewayCall(TEXT, "POST", "/", {}, b"", {"prompt": "q "}, 0.0), "a")
    assert text is not None
    assert text["prompt"] == "q a"
    assert scoring_body(GatewayCall(MESSAGES, "POST", "/", {}, b"", body, 0.0), "a") is None
