"""A request's prompt, in whichever form it came, as token ids."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from baton.errors import invalid
from baton.rpc import inference_pb2
from gateway.conversation import messages_of, options_of
from gateway.no_text import TokensOnlyCodec
from gateway.text import TextCodec

# Below this, encoding takes under 2 ms and is not worth a thread.
_THREAD_ABOVE_CHARS = 8 << 10

T = TypeVar("T")


async def encode_prompt(
    request: inference_pb2.GenerateRequest, codec: TextCodec | TokensOnlyCodec, vocab_size: int
) -> list[int]:
    """Token ids of `request`'s prompt; at least one.

    Raises:
        BatonError: INVALID_ARGUMENT when there is no prompt, or an empty or impossible one.
    """
    match request.WhichOneof("prompt"):
        case "text":
            token_ids = await _encode_text(request.text, codec)
        case "chat":
            token_ids = await _encode_chat(request.chat, codec)
        case "tokens":
            token_ids = list(request.tokens.token_ids)
            _check_token_ids(token_ids, vocab_size)
        case _:
            raise invalid("prompt: got none, expected text, chat or tokens; set one of them")
    if not token_ids:
        raise invalid("prompt: got text that makes no tokens, expected at least one token; send a longer prompt")
    return token_ids


async def _encode_text(text: str, codec: TextCodec | TokensOnlyCodec) -> list[int]:
    if not text:
        raise invalid("prompt.text: got an empty string, expected at least one character; send some text")
    return await off_loop(len(text), lambda: codec.encode(text))


async def _encode_chat(chat: inference_pb2.ChatPrompt, codec: TextCodec | TokensOnlyCodec) -> list[int]:
    messages, options = messages_of(chat), options_of(chat)
    return await off_loop(chat.ByteSize(), lambda: codec.encode_chat(messages, options))


def _check_token_ids(token_ids: list[int], vocab_size: int) -> None:
    if not token_ids:
        raise invalid("prompt.tokens: got no token ids, expected at least one; send some tokens")
    if max(token_ids) >= vocab_size:
        index, token_id = next((i, t) for i, t in enumerate(token_ids) if t >= vocab_size)
        raise invalid(
            f"prompt.tokens.token_ids[{index}]: got {token_id}, expected 0 to {vocab_size - 1} (the model's vocabulary)"
            "; make the ids with this model's tokenizer"
        )


async def off_loop(num_chars: int, encode: Callable[[], T]) -> T:
    """The tokenizer frees the interpreter lock, so a long text on a thread does not hold up other requests."""
    return encode() if num_chars <= _THREAD_ABOVE_CHARS else await asyncio.to_thread(encode)
