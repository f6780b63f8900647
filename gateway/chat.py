"""Chat: Generate for a conversation, with the answer taken apart."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from baton.errors import invalid
from baton.rpc import inference_pb2, sampling_pb2
from gateway.conversation import messages_of, options_of
from gateway.no_text import TokensOnlyCodec
from gateway.parsing.base import AnswerParser, CallArguments, CallStart, Content, Part, PlainText, Reasoning
from gateway.parsing.forced import NamedCall, RequiredCalls
from gateway.parsing.registry import REASONING_PARSERS, TOOL_PARSERS, tool_parser_for
from gateway.parsing.thinking import OPEN, ThinkParser
from gateway.text import TextCodec
from gateway.tools import check_tools, named_call, required_calls

Generate = Callable[[inference_pb2.GenerateRequest, Any], AsyncIterator[inference_pb2.GenerateResponse]]
MakeParser = Callable[[], AnswerParser]

_FINISH = {
    sampling_pb2.FINISH_REASON_UNSPECIFIED: inference_pb2.CHAT_FINISH_REASON_UNSPECIFIED,
    sampling_pb2.FINISH_REASON_STOP: inference_pb2.CHAT_FINISH_REASON_STOP,
    sampling_pb2.FINISH_REASON_LENGTH: inference_pb2.CHAT_FINISH_REASON_LENGTH,
}


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """What answers are searched for."""

    tool_parser: str  # a name of `TOOL_PARSER_NAMES`
    reasoning_parser: str  # a name of `REASONING_PARSER_NAMES`


class _Plan:
    """What is to be generated for a chat, and what will read each answer."""

    def __init__(self, request: inference_pb2.GenerateRequest, make_parser: MakeParser) -> None:
        self.request = request
        self.make_parser = make_parser


class Chat:
    """The method of `baton.v1.Inference` for chats."""

    def __init__(self, codec: TextCodec | TokensOnlyCodec, config: ChatConfig) -> None:
        self._codec = codec
        self._tool_parser = tool_parser_for(config.tool_parser, codec.chat_template)
        self._reasoning_parser = config.reasoning_parser

    async def stream(
        self, request: inference_pb2.ChatRequest, context: Any, generate: Generate
    ) -> AsyncIterator[inference_pb2.ChatResponse]:
        """The answer's parts; `context` is the call's, as `generate` takes it.

        Raises:
            BatonError: INVALID_ARGUMENT for tools that cannot be served; as `generate`.
        """
        plan = self._plan(request)
        answers: dict[int, _ChatAnswer] = {}
        async for response in generate(plan.request, context):
            if response.index not in answers:
                answers[response.index] = _ChatAnswer(plan.make_parser())
            yield answers[response.index].response(response)

    def _plan(self, request: inference_pb2.ChatRequest) -> _Plan:
        check_tools(request.chat.tools)
        plain = inference_pb2.GenerateRequest(
            request_id=request.request_id,
            model=request.model,
            chat=request.chat,
            sampling=request.sampling,
            priority=request.priority,
        )
        make_parser = self._calls_parser(request, plain)
        if make_parser().needs_special_tokens:
            plain.sampling.skip_special_tokens = False
        # A grammar leaves no room for reasoning.
        if self._reasoning_parser not in REASONING_PARSERS or plain.sampling.HasField("structured"):
            return _Plan(plain, make_parser)
        begins_inside = self._begins_inside(request.chat)
        return _Plan(plain, lambda: ThinkParser(make_parser(), begins_inside))

    def _calls_parser(self, request: inference_pb2.ChatRequest, plain: inference_pb2.GenerateRequest) -> MakeParser:
        """Makes the parser for the request's tool choice; a choice that forces calls makes a grammar in `plain`."""
        tools, choice = request.chat.tools, request.tool_choice
        if not tools:
            if choice.function or choice.mode not in (
                inference_pb2.TOOL_MODE_UNSPECIFIED,
                inference_pb2.TOOL_MODE_NONE,
            ):
                raise invalid(
                    "tool_choice: got one without tools, expected some to choose from; send tools, or drop it"
                )
            return PlainText
        parallel = request.parallel_tool_calls if request.HasField("parallel_tool_calls") else True
        if choice.WhichOneof("choice") == "function":
            return self._forced(plain, lambda: NamedCall(choice.function), named_call(tools, choice.function))
        match choice.mode:
            case inference_pb2.TOOL_MODE_NONE:
                return PlainText
            case inference_pb2.TOOL_MODE_REQUIRED:
                return self._forced(plain, RequiredCalls, required_calls(tools, parallel))
        if self._tool_parser is None:
            raise invalid(
                'tool_choice: got "auto", but this model\'s chat template tells no format of tool calls; choose '
                '"required", "none" or a function, or start the gateway with --tool-call-parser'
            )
        return TOOL_PARSERS[self._tool_parser]

    def _forced(
        self,
        plain: inference_pb2.GenerateRequest,
        make_parser: MakeParser,
        grammar: sampling_pb2.StructuredOutput,
    ) -> MakeParser:
        if plain.sampling.HasField("structured"):
            raise invalid(
                "tool_choice: got one that forces calls together with a grammar for the answer, expected one of them; "
                "drop the grammar, or choose auto"
            )
        plain.sampling.structured.CopyFrom(grammar)
        return make_parser

    def _begins_inside(self, chat: inference_pb2.ChatPrompt) -> bool:
        """Whether the answer's first words are reasoning, with no opening tag of the model's own."""
        if REASONING_PARSERS[self._reasoning_parser]:
            return True
        return self._codec.render(messages_of(chat), options_of(chat)).rstrip().endswith(OPEN)


class _ChatAnswer:
    """Turns one answer's responses of Generate into those of Chat."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._has_calls = False

    def response(self, plain: inference_pb2.GenerateResponse) -> inference_pb2.ChatResponse:
        """The same, taken apart."""
        parts = self._parser.push(plain.text)
        finish = _FINISH[plain.finish_reason]
        if plain.finish_reason:
            parts += self._parser.finish()
        response = inference_pb2.ChatResponse(
            request_id=plain.request_id,
            trace_id=plain.trace_id,
            index=plain.index,
            token_ids=plain.token_ids,
            logprobs=plain.logprobs,
            prompt_logprobs=plain.prompt_logprobs,
        )
        for part in parts:
            self._add(response, part)
        if plain.finish_reason:
            if finish == inference_pb2.CHAT_FINISH_REASON_STOP and self._has_calls and self._parser.ends_with_calls:
                finish = inference_pb2.CHAT_FINISH_REASON_TOOL_CALLS
            response.finish_reason = finish
            response.usage.CopyFrom(plain.usage)
            response.hand_over.CopyFrom(plain.hand_over)
        return response

    def _add(self, response: inference_pb2.ChatResponse, part: Part) -> None:
        match part:
            case Content(text):
                response.content += text
            case Reasoning(text):
                response.reasoning_content += text
            case CallStart(index, call_id, name):
                self._has_calls = True
                response.tool_calls.add(index=index, id=call_id, name=name)
            case CallArguments(index, text):
                calls = response.tool_calls
                if calls and calls[-1].index == index:
                    calls[-1].arguments += text
                else:
                    calls.add(index=index, arguments=text)
