"""`baton generate`: asks a running gateway for one answer or several."""

from typing import Annotated

import typer

from baton.cli.checked import check_address, check_seconds, check_text, sampling_params
from baton.cli.grammar_flags import structured_output
from baton.cli.show import Display, run_and_show
from baton.errors import invalid
from baton.local.run_folder import read_run_file
from baton.rpc import inference_pb2, sampling_pb2

DEFAULT_GATEWAY = "127.0.0.1:8080"


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt, or the user's message with --chat.")],
    gateway: Annotated[
        str | None, typer.Option(help=f"host:port; default: the running stack's, else {DEFAULT_GATEWAY}.")
    ] = None,
    model: Annotated[str, typer.Option(help="Default: the gateway's first.")] = "",
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Put the prompt into the chat template.")] = True,
    system: Annotated[str | None, typer.Option(help="A system message; with --chat.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.")] = 128,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0: all tokens.")] = None,
    top_p: Annotated[float | None, typer.Option()] = None,
    min_p: Annotated[float | None, typer.Option()] = None,
    presence_penalty: Annotated[float | None, typer.Option()] = None,
    frequency_penalty: Annotated[float | None, typer.Option()] = None,
    repetition_penalty: Annotated[float | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="So many answers, 1 to 16.")] = None,
    best_of: Annotated[int | None, typer.Option(help="Make so many answers and show the --n most likely.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Hold back the end until then.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the answer; can be repeated.")] = None,
    stop_token_ids: Annotated[list[int] | None, typer.Option("--stop-token-id", help="Can be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on to --max-tokens.")] = False,
    json_schema: Annotated[
        str | None, typer.Option(help="The answer is JSON that this schema accepts; a file's name, or the schema.")
    ] = None,
    json_object: Annotated[bool, typer.Option("--json-object", help="The answer is a JSON object.")] = False,
    regex: Annotated[str | None, typer.Option(help="The answer matches this.")] = None,
    grammar: Annotated[str | None, typer.Option(help="The answer follows this EBNF: a file, or text.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="The answer is one of these; to be repeated.")] = None,
    structural_tag: Annotated[str | None, typer.Option(help="A structural tag; a file's name, or its JSON.")] = None,
    include_stop: Annotated[bool, typer.Option("--include-stop", help="Leave what ended the answer in it.")] = False,
    bad_words: Annotated[list[str] | None, typer.Option("--bad-word", help="Not to be said; can be repeated.")] = None,
    logit_bias: Annotated[list[str] | None, typer.Option(help="TOKEN_ID=BIAS; can be repeated.")] = None,
    allowed_token_ids: Annotated[
        list[int] | None, typer.Option("--allowed-token-id", help="No other ones; can be repeated.")
    ] = None,
    logprobs: Annotated[int | None, typer.Option(help="Alternatives to each token, 0 to 20; for --json.")] = None,
    prompt_logprobs: Annotated[int | None, typer.Option(help="The same for the prompt; for --json.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Show the prompt in front of the answer.")] = False,
    skip_special_tokens: Annotated[bool, typer.Option(help="Leave them out of the text.")] = True,
    priority: Annotated[int, typer.Option(help="-100 to 100; lower is earlier.")] = 0,
    trace: Annotated[bool, typer.Option("--trace/--no-trace", help="Show the request's trace as a tree.")] = True,
    traces: Annotated[
        str | None, typer.Option(help="host:port of a trace store; default: the running stack's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")] = False,
    timeout_s: Annotated[float, typer.Option(help="Give up after so long.")] = 600.0,
) -> None:
    """Ask the gateway for an answer, stream it, and show latencies, the KV's way and the trace."""
    if system is not None and not chat:
        raise invalid("got --system with --no-chat, expected a prompt as it is; put the text into it, or use --chat")
    check_seconds("--timeout-s", timeout_s)
    for flag, given in (("--gateway", gateway), ("--traces", traces)):
        if given is not None:
            check_address(flag, given)
    running = read_run_file()
    address = gateway or (running.gateway_address if running else DEFAULT_GATEWAY)
    if traces is None and running is not None and address == running.gateway_address:
        traces = running.traces_address
    sampling = sampling_params(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        seed=seed,
        n=n,
        best_of=best_of,
        min_tokens=min_tokens,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        structured=structured_output(
            json_schema=json_schema,
            json_object=json_object or None,
            regex=regex,
            ebnf=grammar,
            choice=choice,
            structural_tag=structural_tag,
        ),
        include_stop_str_in_output=include_stop,
        bad_words=bad_words,
        logit_bias=parse_biases(logit_bias or []),
        allowed_token_ids=allowed_token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=skip_special_tokens,
    )
    request = build_request(prompt, model, sampling, chat, system)
    request.echo = echo
    request.priority = priority
    run_and_show(request, Display(address, traces if trace else None, as_json, timeout_s))


def build_request(
    prompt: str, model: str, sampling: sampling_pb2.SamplingParams, chat: bool = True, system: str | None = None
) -> inference_pb2.GenerateRequest:
    """The request for a prompt as text or as a chat of one user message.

    Raises:
        BatonError: INVALID_ARGUMENT for text that is not UTF-8.
    """
    for name, text in (("the prompt", prompt), ("--system", system or ""), ("--model", model)):
        check_text(name, text)
    if not chat:
        return inference_pb2.GenerateRequest(model=model, text=prompt, sampling=sampling)
    messages = [inference_pb2.ChatMessage(role="user", content=prompt)]
    if system is not None:
        messages.insert(0, inference_pb2.ChatMessage(role="system", content=system))
    return inference_pb2.GenerateRequest(
        model=model, chat=inference_pb2.ChatPrompt(messages=messages), sampling=sampling
    )


def parse_biases(values: list[str]) -> dict[int, float]:
    """The values of --logit-bias.

    Raises:
        BatonError: INVALID_ARGUMENT for one that is no TOKEN_ID=BIAS.
    """
    biases = {}
    for value in values:
        token_id, _, bias = value.partition("=")
        try:
            sampling_pb2.SamplingParams(logit_bias={int(token_id): float(bias)})  # what the field can hold
            biases[int(token_id)] = float(bias)
        except ValueError:
            raise invalid(f"--logit-bias: got {value!r}, expected TOKEN_ID=BIAS, as in 42=-1.5") from None
    return biases
