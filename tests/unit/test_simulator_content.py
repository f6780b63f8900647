"""Names in place of tokens: a prompt's keys are equal exactly where the hashes of its tokens would be."""

import json
from pathlib import Path

import pytest

from baton.bench.workloads.options import WorkloadOptions, make_workload
from baton.block_hash import block_hashes
from simulator.content import Content, ContentSource, answer_name, block_keys

_SMALL = {"vocab_size": 5000, "input_tokens": 40, "prefix_tokens": 50, "num_prefixes": 2, "document_tokens": 90}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    lines = [(0, 1300, [1, 2, 3]), (1, 1300, [1, 2, 4]), (2, 1300, [1, 2]), (3, 600, [1, 2]), (4, 1500, [1, 2, 3])]
    file = tmp_path / "trace.jsonl"
    rows = ({"timestamp": at, "input_length": n, "output_length": 5, "hash_ids": ids} for at, n, ids in lines)
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return str(file)


@pytest.mark.parametrize("kind", ["random", "shared-prefix", "long-document", "trace"])
@pytest.mark.parametrize("scale", [16, 48])
def test_equal_keys_where_hashes_are_equal(kind: str, scale: int, trace: str) -> None:
    options = WorkloadOptions(kind=kind, trace=trace if kind == "trace" else "", length_spread=0.5, **_SMALL)
    real, named = make_workload(options), make_workload(options, ContentSource(options.seed, options.vocab_size))
    keys_of: dict[bytes, int] = {}
    hash_of: dict[int, bytes] = {}
    for number in range(5 if kind == "trace" else 12):
        tokens, content = (workload.session(number).turns[0].new_tokens for workload in (real, named))
        assert isinstance(content, Content)
        assert len(content) == len(tokens)
        hashes, keys = block_hashes("model", tokens, scale), block_keys(content, answer_name(number, 0), scale).prompt
        assert len(hashes) == len(keys) == len(tokens) // scale
        for block_hash, key in zip(hashes, keys, strict=True):
            assert keys_of.setdefault(block_hash, key) == key
            assert hash_of.setdefault(key, block_hash) == block_hash


def test_a_next_turn_finds_the_answer_before_it() -> None:
    first, answer = Content(((1, 40),)), answer_name(3, 0)
    keys = block_keys(first, answer, 16)
    following = block_keys(first + Content(((answer, 30), (2, 20))), answer_name(3, 1), 16)
    assert following.prompt[:2] == keys.prompt
    assert following.prompt[2:4] == [keys.answer_chain ^ 2, keys.answer_chain ^ 3]
    assert following.prompt[4] != keys.answer_chain ^ 4  # it holds tokens of the next question


def test_content_is_cut_from_the_front_only() -> None:
    content = Content(((1, 10), (2, 10)))
    assert content[:15].runs == ((1, 10), (2, 5))
    assert len(content[:15]) == 15
    with pytest.raises(TypeError, match="no single tokens"):
        content[3]
