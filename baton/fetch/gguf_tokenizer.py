"""A GGUF's byte-level BPE tokenizer as tokenizer.json and tokenizer_config.json."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from tokenizers.processors import TemplateProcessing

from baton.errors import BatonError, ErrorCode
from baton.fetch.gguf_metadata import GgufMetadata, field, required

# Contractions, words with what stands before them, digits, signs with line ends, white space.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split_at(digits: str) -> PreTokenizer:
    pattern = Regex(_SPLIT.format(digits=digits))
    return Sequence([Split(pattern, "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


class _Kind(NamedTuple):
    """A byte-level BPE tokenizer: what differs between families."""

    pre_tokenizer: Callable[[], PreTokenizer]
    whole_words_first: bool = False  # a word that is a token stays one, whatever the merges say
    composes: bool = False  # Unicode's form C


# By GGUF's name for how text is split before BPE.
_KINDS = {
    "smollm": _Kind(lambda: Sequence([Digits(True), ByteLevel(add_prefix_space=False, use_regex=True)])),
    "llama-bpe": _Kind(lambda: _split_at("{1,3}"), whole_words_first=True),
    "qwen2": _Kind(lambda: _split_at(""), composes=True),
}


def build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The tokenizer, with control tokens as special and user-defined ones as plain added tokens.

    Raises:
        BatonError: FAILED_PRECONDITION for a tokenizer that is not byte-level BPE of a known kind.
    """
    model, name = required(reader, "tokenizer.ggml.model"), field(reader, "tokenizer.ggml.pre", "default")
    if model != "gpt2" or name not in _KINDS:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"got GGUF tokenizer {model!r} with pre-tokenizer {name!r}, expected 'gpt2' with one of "
            f"{', '.join(_KINDS)}; give the model as a folder with tokenizer.json",
        )
    kind = _KINDS[name]
    tokens: list[str] = required(reader, "tokenizer.ggml.tokens")
    types: list[int] = required(reader, "tokenizer.ggml.token_type")
    merges = [_pair(merge) for merge in required(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=kind.whole_words_first))
    if kind.composes:
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = kind.pre_tokenizer()
    tokenizer.decoder = ByteLevelDecoder()
    typed = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([_added(token, True) for token, type_ in typed if type_ == TokenType.CONTROL])
    tokenizer.add_tokens([_added(token, False) for token, type_ in typed if type_ == TokenType.USER_DEFINED])
    if field(reader, "tokenizer.ggml.add_bos_token", False):
        bos = required(reader, "tokenizer.ggml.bos_token_id")
        tokenizer.post_processor = TemplateProcessing(single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)])
    return tokenizer


def tokenizer_config(reader: GGUFReader, metadata: GgufMetadata) -> dict[str, Any]:
    """tokenizer_config.json, readable by transformers' AutoTokenizer."""
    tokens: list[str] = required(reader, "tokenizer.ggml.tokens")
    ids = {
        "bos_token": metadata.bos_token_id,
        "eos_token": metadata.eos_token_id,
        "pad_token": metadata.pad_token_id,
        "unk_token": metadata.unk_token_id,
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": field(reader, "tokenizer.ggml.add_bos_token", False),
        "add_prefix_space": field(reader, "tokenizer.ggml.add_space_prefix", False),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.max_position_embeddings,
    }
    config.update({name: tokens[index] for name, index in ids.items() if index is not None})
    template = field(reader, "tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _added(token: str, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)
