"""Tokenize and Detokenize: the served model's tokenizer for clients."""

import asyncio

from baton.errors import invalid
from baton.rpc import inference_pb2
from gateway.conversation import messages_of, options_of
from gateway.no_text import TokensOnlyCodec
from gateway.prompt import off_loop
from gateway.text import TextCodec
from gateway.tools import check_tools

MAX_DETOKENIZE_IDS = 1 << 20


class TokenService:
    """The methods of `baton.v1.Inference` that only need the tokenizer."""

    def __init__(self, codec: TextCodec | TokensOnlyCodec, vocab_size: int) -> None:
        self._codec = codec
        self._vocab_size = vocab_size

    async def tokenize(
        self, request: inference_pb2.TokenizeRequest, max_model_len: int
    ) -> inference_pb2.TokenizeResponse:
        """The prompt as Generate would send it to workers.

        Raises:
            BatonError: INVALID_ARGUMENT without a prompt, or for a chat that the template refuses.
        """
        match request.WhichOneof("prompt"):
            case "text":
                bare = request.HasField("add_special_tokens") and not request.add_special_tokens
                encode = self._codec.encode_bare if bare else self._codec.encode
                token_ids = await off_loop(len(request.text), lambda: encode(request.text))
            case "chat":
                check_tools(request.chat.tools)
                messages, options = messages_of(request.chat), options_of(request.chat)
                token_ids = await off_loop(
                    request.chat.ByteSize(),
                    lambda: self._codec.encode_chat(messages, options, request.add_special_tokens),
                )
            case _:
                raise invalid("prompt: got none, expected text or chat; set one of them")
        strings = [self._codec.token_str(token_id) for token_id in token_ids] if request.return_token_strs else ()
        return inference_pb2.TokenizeResponse(token_ids=token_ids, max_model_len=max_model_len, token_strs=strings)

    async def detokenize(self, request: inference_pb2.DetokenizeRequest) -> inference_pb2.DetokenizeResponse:
        """Raises:
        BatonError: INVALID_ARGUMENT for ids outside of the vocabulary, too many, or a model without a tokenizer.
        """
        if not self._codec.has_text:
            raise invalid("token_ids: got some to read, but the model has no tokenizer; detokenize elsewhere")
        if len(request.token_ids) > MAX_DETOKENIZE_IDS:
            raise invalid(
                f"token_ids: got {len(request.token_ids)} ids, expected at most {MAX_DETOKENIZE_IDS}; send fewer"
            )
        for index, token_id in enumerate(request.token_ids):
            if token_id >= self._vocab_size:
                raise invalid(
                    f"token_ids[{index}]: got {token_id}, expected 0 to {self._vocab_size - 1} (the model's "
                    "vocabulary); drop it"
                )
        text = await asyncio.to_thread(self._codec.decode, list(request.token_ids), request.skip_special_tokens)
        return inference_pb2.DetokenizeResponse(text=text)
