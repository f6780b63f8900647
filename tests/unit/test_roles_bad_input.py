"""What a caller can get wrong fails its own request, with a reason, and nothing else."""

import math
from pathlib import Path

import msgspec
import pytest

from baton.errors import ErrorCode
from baton.types import Role, SamplingParams
from engine.messages import Abort, Aborted, AddLocal, AddPrefill, Event, Failed, Refused, Release, Reserve
from engine.roles.local import LocalRole
from tests.fakes.role_pair import GREEDY, PROMPT, Pair, make_context, of, token_ids, turn

OTHER_PROMPT = tuple(range(100, 147))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ((), "got 0 tokens"),
        (tuple([5] * 128), "expected at most 127"),
        ((1, 320), "prompt: got token id 320, expected 0 to 319"),
    ],
)
def test_a_bad_prompt_is_refused_alone(pair: Pair, prompt: tuple[int, ...], message: str) -> None:
    granted = pair.start("good")
    pair.decode.handle(Reserve("bad", 1, prompt, GREEDY))
    pair.prefill.handle(AddPrefill("bad", 1, prompt, GREEDY, granted.grant))
    pair.pump()
    for event in (of(pair.decode_events, "bad", Refused)[0], of(pair.prefill_events, "bad", Failed)[0]):
        assert event.code is ErrorCode.INVALID_ARGUMENT
        assert message in event.message
    assert len(pair.tokens("good")) == 6
    pair.assert_at_rest()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature: got -0.1, expected a finite number, 0 (greedy) or more"),
        ({"temperature": math.nan}, "temperature: got nan"),
        ({"temperature": math.inf}, "temperature: got inf"),
        ({"top_p": 0.0}, "top_p: got 0, expected above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p: got 1.1"),
        ({"top_p": math.nan}, "top_p: got nan"),
        ({"min_p": -0.5}, "min_p: got -0.5, expected 0 to 1"),
        ({"min_p": 1.5}, "min_p: got 1.5"),
        ({"top_k": -1}, "top_k: got -1, expected 0 (all tokens) or more"),
        ({"presence_penalty": math.nan}, "presence_penalty: got nan, expected a finite number"),
        ({"frequency_penalty": -math.inf}, "frequency_penalty: got -inf, expected a finite number"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: got 0, expected a finite number above 0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty: got inf"),
        ({"logit_bias": {5: math.nan}}, "logit_bias: got nan for token 5, expected a finite number"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias: got token id -1, expected 0 to 319"),
        ({"stop_token_ids": (2, 320)}, "stop_token_ids: got token id 320, expected 0 to 319"),
        ({"seed": -1}, "seed: got -1, expected 0 to 18446744073709551615"),
        ({"seed": 2**64}, "seed: got 18446744073709551616"),
        ({"max_tokens": 0}, "max_tokens: got 0, expected at least 1"),
        ({"min_tokens": -1}, "min_tokens: got -1, expected at least 0"),
        ({"num_logprobs": -1}, "logprobs: got -1, expected 0 to 20"),
        ({"num_logprobs": 21}, "logprobs: got 21, expected 0 to 20"),
        ({"num_prompt_logprobs": -1}, "prompt_logprobs: got -1, expected 0 to 20"),
        ({"num_prompt_logprobs": 21}, "prompt_logprobs: got 21, expected 0 to 20"),
        ({"allowed_token_ids": (3, 320)}, "allowed_token_ids: got token id 320, expected 0 to 319"),
        ({"allowed_token_ids": (3,) * 1025}, "allowed_token_ids: got 1025 token ids, expected at most 1024"),
        ({"stop_token_ids": (3,) * 129}, "stop_token_ids: got 129 token ids, expected at most 128"),
        ({"logit_bias": dict.fromkeys(range(301), 1.0)}, "logit_bias: got 301 token ids, expected at most 300"),
        ({"bad_words": ((1, 2), ())}, "bad_words: got an empty sequence"),
        ({"bad_words": ((1, 2), (3, -1))}, "bad_words[1]: got token id -1, expected 0 to 319"),
        ({"bad_words": ((1,) * 65,)}, "bad_words[0]: got 65 token ids, expected at most 64"),
        ({"bad_words": ((1,),) * 129}, "bad_words: got 129 sequences, expected at most 128"),
        ({"allowed_token_ids": (5, 6), "bad_words": ((5,), (6,))}, "allowed_token_ids: got 2 ids that are all banned"),
        (
            {"allowed_token_ids": (5, 6), "bad_words": ((5,),), "stop_token_ids": (6,), "min_tokens": 1},
            "allowed_token_ids: got 2 ids that are all banned",
        ),
    ],
)
def test_bad_sampling_parameters_are_refused_alone(pair: Pair, fields: dict[str, object], message: str) -> None:
    sampling = msgspec.structs.replace(SamplingParams(), **fields)
    granted = pair.start("good")
    pair.decode.handle(Reserve("bad", 1, PROMPT, sampling))
    pair.decode.handle(AddLocal("local", 1, PROMPT, sampling))
    pair.prefill.handle(AddPrefill("bad", 1, PROMPT, sampling, granted.grant))
    pair.pump()
    refusals = [of(pair.decode_events, "bad", Refused), of(pair.decode_events, "local", Failed)]
    for (event,) in (*refusals, of(pair.prefill_events, "bad", Failed)):
        assert event.code is ErrorCode.INVALID_ARGUMENT
        assert event.message.startswith(message)
    assert len(pair.tokens("good")) == 6
    pair.assert_at_rest()


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1e-45, top_k=2**31 - 1, min_p=1.0, seed=2**64 - 1, num_logprobs=20),
        SamplingParams(temperature=3e38, top_p=1e-45, repetition_penalty=1e-45, logit_bias={0: 3e38, 1: -3e38}),
        SamplingParams(presence_penalty=-3e38, frequency_penalty=3e38, repetition_penalty=3e38, min_tokens=2**31 - 1),
        SamplingParams(temperature=0, stop_token_ids=tuple(range(128)), min_tokens=9, num_logprobs=0),
        SamplingParams(allowed_token_ids=(7,), bad_words=((7, 7),)),  # the one way on, in spite of the word
        SamplingParams(num_prompt_logprobs=20, logit_bias=dict.fromkeys(range(300), -3e38)),
        SamplingParams(top_p=0.5, min_p=0.1, top_k=3, stop_token_ids=tuple(range(128)), min_tokens=9),
    ],
)
def test_parameters_at_their_limits_break_no_step(tiny_llama: Path, sampling: SamplingParams) -> None:
    events: list[Event] = []
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events))
    role.handle(AddLocal("extreme", 1, PROMPT, msgspec.structs.replace(sampling, max_tokens=4)))
    for _ in range(20):
        turn(role)
    assert len(token_ids(events, "extreme")) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_ids": (0, 1, 2, 3, 4, 40)}, "got block 40, expected 0 to 39, the blocks of decode worker decode"),
        ({"block_ids": (0, 1, 2, 3, 4, -1)}, "got block -1, expected 0 to 39"),
        ({"block_ids": (0, 1, 2, 3, 4, 2**31)}, "got block 2147483648, expected 0 to 39"),
        ({"block_ids": (0, 1, 2, 3, 4, 4)}, "got a block twice, expected each once"),
        ({"block_ids": (0, 1, 2)}, "got 3 blocks from block 0 on, expected them to cover the prompt's 6 blocks"),
        ({"block_ids": (0, 1, 2, 3, 4, 5, 6), "first_block": -1}, "got 7 blocks from block -1 on"),
        ({"block_ids": (), "first_block": 6}, "got 0 blocks from block 6 on"),
    ],
)
def test_a_grant_of_impossible_blocks_fails_alone(pair: Pair, changes: dict[str, object], message: str) -> None:
    granted = pair.reserve("bad")
    pair.start("good", OTHER_PROMPT)
    grant = msgspec.structs.replace(granted.grant, **changes)
    pair.prefill.handle(AddPrefill("bad", 1, PROMPT, GREEDY, grant))
    pair.pump()
    (failed,) = of(pair.prefill_events, "bad", Failed)
    assert failed.code is ErrorCode.INVALID_ARGUMENT
    assert message in failed.message
    pair.prefill.handle(Abort("bad", 1))
    pair.pump(1)
    assert of(pair.prefill_events, "bad", Aborted)[0].fenced
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    assert len(pair.tokens("good")) == 6
    pair.assert_at_rest()


def test_commands_of_another_role_are_answered(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    granted = pair.start("good")
    pair.prefill.handle(AddLocal("local", 1, PROMPT, GREEDY))
    pair.prefill.handle(Reserve("reserve", 1, PROMPT, GREEDY))
    pair.prefill.handle(Release("some grant", fenced=True))
    pair.decode.handle(AddPrefill("prefill", 1, PROMPT, GREEDY, granted.grant))
    pair.pump()
    answers = [
        *of(pair.prefill_events, "local", Failed),
        *of(pair.prefill_events, "reserve", Refused),
        *of(pair.decode_events, "prefill", Failed),
    ]
    assert [(answer.code, answer.message) for answer in answers] == [
        (ErrorCode.INTERNAL, "a prefill engine got a AddLocal command"),
        (ErrorCode.INTERNAL, "a prefill engine got a Reserve command"),
        (ErrorCode.INTERNAL, "a decode engine got a AddPrefill command"),
    ]
    assert "a prefill engine got a Release command" in caplog.text
    assert len(pair.tokens("good")) == 6
    pair.assert_at_rest()
