"""Stop strings: found wherever the text is cut, and never emitted in part."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.detokenizer import Detokenizer
from gateway.output_text import OutputText
from gateway.stop_strings import StopStrings
from tests.fakes.text_model import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()


def search(pieces: list[str], stops: list[str], include: bool = False) -> tuple[list[str], bool]:
    strings = StopStrings(stops, include)
    emitted = [strings.push(piece) for piece in pieces]
    return [*emitted, strings.flush()], strings.found


@pytest.mark.parametrize(
    ("pieces", "stops", "emitted", "found"),
    [
        (["abc", "def"], ["cd"], ["ab", "", ""], True),
        (["abc", "xef"], ["cd"], ["ab", "cxef", ""], False),
        (["a", "b"], [], ["a", "b", ""], False),
        (["ab", "c"], ["abcd"], ["", "", "abc"], False),
        (["aab"], ["ab"], ["a", ""], True),
        (["aa", "ab"], ["aab"], ["", "a", ""], True),
        (["xyz stop"], ["stop", "y"], ["x", ""], True),  # the one that ends first
        (["xabc"], ["bc", "abc"], ["x", ""], True),  # of two that end together the longest
        (["stop", "more"], ["stop"], ["", "", ""], True),  # nothing after the end
    ],
)
def test_search(pieces: list[str], stops: list[str], emitted: list[str], found: bool) -> None:
    assert search(pieces, stops) == (emitted, found)


def test_included_stop_string_is_emitted_whole() -> None:
    assert search(["abc", "def"], ["cd"], include=True) == (["ab", "cd", ""], True)


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(0, 30), max_size=8),
    st.booleans(),
)
def test_cuts_do_not_matter(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    emitted, found = search(pieces, stops, include)
    whole, whole_found = search([text], stops, include)
    assert ("".join(emitted), found) == ("".join(whole), whole_found)
    assert text.startswith("".join(emitted))
    if not include:
        assert found == any(stop in text for stop in stops)
        assert not any(stop in "".join(emitted) for stop in stops)


def output_text(stops: list[str], stop_token_ids: frozenset[int] = frozenset(), min_tokens: int = 0) -> OutputText:
    return OutputText(Detokenizer(TOKENIZER, frozenset()), StopStrings(stops, False), stop_token_ids, min_tokens)


def test_stop_string_across_tokens() -> None:
    text = output_text(["d j"])
    pieces = [text.push(token_id) for token_id in TOKENIZER.encode("a bad jump").ids if not text.stopped]
    assert text.stopped
    assert "".join(pieces) + text.finish() == "a ba"


def test_text_of_a_stop_token_is_left_out() -> None:
    ids = TOKENIZER.encode("xyz").ids
    text = output_text([], frozenset(ids[-1:]))
    assert "".join(text.push(token_id) for token_id in ids) + text.finish() == TOKENIZER.decode(ids[:-1])


def test_min_tokens_defers_the_search() -> None:
    ids = TOKENIZER.encode("zzzzz").ids
    text = output_text(["z"], min_tokens=3)
    num_tokens = 0
    while not text.stopped:
        text.push(ids[num_tokens])
        num_tokens += 1
    assert num_tokens == 4


def test_a_stop_string_may_begin_in_exempt_text_but_not_end_there() -> None:
    strings = StopStrings(["bc"], include_in_output=False)
    assert strings.push("abcab", exempt=True) == "abca"
    assert not strings.found
    assert strings.push("cd") == ""
    assert strings.found


def test_exempt_text_counts_for_no_stop_however_it_is_held() -> None:
    strings = StopStrings(["aab", "ab"], include_in_output=False)
    assert [strings.push(piece, exempt=True) for piece in ("a", "a", "b", "a")] == ["", "", "aab", ""]
    assert strings.push("ab") == ""
    assert strings.found


def test_held_back_text_comes_at_the_end() -> None:
    text = output_text(["dog house"])
    pieces = [text.push(token_id) for token_id in TOKENIZER.encode("lazy dog").ids]
    assert "dog" not in "".join(pieces)
    assert "".join(pieces) + text.finish() == "lazy dog"
    assert not text.stopped
