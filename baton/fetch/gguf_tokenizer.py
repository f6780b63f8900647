"""A GGUF's byte-level BPE tokenizer as tokenizer.json and tokenizer_config.json."""

from typing import Any

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from baton.errors import BatonError, ErrorCode
from baton.fetch.gguf_metadata import LlamaMetadata, field, required

# How text is split before BPE, by GGUF's name for it.
_DIGITS_THEN_GPT2 = "smollm"


def build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The tokenizer, with control tokens as special and user-defined ones as plain added tokens.

    Raises:
        BatonError: FAILED_PRECONDITION for a tokenizer other than SmolLM's byte-level BPE.
    """
    kind = (required(reader, "tokenizer.ggml.model"), field(reader, "tokenizer.ggml.pre", "default"))
    if kind != ("gpt2", _DIGITS_THEN_GPT2):
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"got GGUF tokenizer {kind}, expected ('gpt2', '{_DIGITS_THEN_GPT2}'); others are not read",
        )
    tokens: list[str] = required(reader, "tokenizer.ggml.tokens")
    types: list[int] = required(reader, "tokenizer.ggml.token_type")
    merges = [_pair(merge) for merge in required(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    typed = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([_added(token, True) for token, type_ in typed if type_ == TokenType.CONTROL])
    tokenizer.add_tokens([_added(token, False) for token, type_ in typed if type_ == TokenType.USER_DEFINED])
    return tokenizer


def tokenizer_config(reader: GGUFReader, metadata: LlamaMetadata) -> dict[str, Any]:
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
