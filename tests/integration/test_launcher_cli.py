"""`baton generate` and `baton demo` against stub services: output, figures, trace, errors and exit codes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stub_launcher import STUB, stub_services
from stub_service import TOKENS

from baton.cli import main
from baton.cli.show import Pieces
from baton.config import StackOptions
from baton.local import LocalStack
from baton.local.ports import free_port

LAUNCHER = str(Path(STUB).with_name("stub_launcher.py"))
SPANS = ["gateway.request", "gateway.tokenize", "gateway.route", "decode.reserve", "prefill.queue", "prefill.compute"]
SPANS += ["kv.transfer", "decode.queue", "decode.run", "gateway.detokenize"]


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def stack(model: Path) -> Iterator[LocalStack]:
    with LocalStack(StackOptions(model=str(model), port=0), services=stub_services()) as started:
        yield started


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def test_generate_streams_and_shows_figures_and_the_trace(
    stack: LocalStack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", "Hi", "--gateway", stack.gateway_address, "--traces", stack.otlp_address) == 0
    output = capsys.readouterr().out
    assert output.startswith("".join(TOKENS))
    assert "9 in, 4 out" in output
    assert "prefill-0 → decode-0, 1 blocks, 4,096 bytes" in output
    assert "transfer 250 µs" in output
    assert "trace: 10 spans" in output
    assert all(f"── {name}" in output for name in SPANS)


def test_generate_as_json_is_one_object(stack: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--json", "--no-chat", "--gateway", stack.gateway_address, "--traces", stack.otlp_address)
    assert run("generate", "Hi", *options) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("".join(TOKENS), [0, 1, 2, 3], "stop")
    assert answer["usage"] == {"prompt_tokens": 9, "completion_tokens": 4, "cached_prompt_tokens": 0}
    assert answer["hand_over"]["decode_worker"] == "decode-0"
    assert 0 < answer["timings"]["ttft_ms"] <= answer["timings"]["total_ms"]
    assert sorted(span["name"] for span in answer["trace"]) == sorted(SPANS)


def test_several_answers_are_shown_one_by_one(stack: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "Hi", "--n", "3", "--gateway", stack.gateway_address) == 0
    output = capsys.readouterr().out
    parts = ["Answer 0", "".join(TOKENS), "finished by stop", "Answer 1", "another 1", "Answer 2", "another 2"]
    places = [output.index(part) for part in parts]
    assert places == sorted(places)
    assert run("generate", "Hi", "--n", "2", "--json", "--gateway", stack.gateway_address) == 0
    told = json.loads(capsys.readouterr().out)
    assert [answer["text"] for answer in told["answers"]] == ["".join(TOKENS), "another 1"]


def test_generate_without_a_trace_store_shows_no_trace(stack: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "Hi", "--gateway", stack.gateway_address) == 0
    captured = capsys.readouterr()
    assert "trace" not in captured.out + captured.err


def test_a_trace_store_that_is_away_does_not_spoil_the_answer(
    stack: LocalStack, capsys: pytest.CaptureFixture[str]
) -> None:
    away = f"127.0.0.1:{free_port()}"
    assert run("generate", "Hi", "--gateway", stack.gateway_address, "--traces", away) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("".join(TOKENS))
    assert captured.err.startswith(f"no trace: UNAVAILABLE from {away}")


def test_a_refusal_is_one_line(stack: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "fail", "--gateway", stack.gateway_address) == 1
    assert capsys.readouterr().err == "error: RESOURCE_EXHAUSTED: all decode workers are full\n"


def test_a_gateway_that_dies_in_mid_answer_is_told_below_the_text(
    stack: LocalStack, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def show_and_kill(pieces: Pieces, text: str) -> None:
        show_piece(pieces, text)
        if text == TOKENS[1]:
            stack.kill("gateway")

    show_piece = Pieces.show
    monkeypatch.setattr(Pieces, "show", show_and_kill)
    assert run("generate", "slow", "--gateway", stack.gateway_address) == 1
    captured = capfd.readouterr()
    assert captured.out == TOKENS[0] + TOKENS[1] + "\n"
    assert captured.err.startswith("error: UNAVAILABLE: the answer broke off after 2 tokens, since the gateway at ")
    assert "is a gateway running" not in captured.err


def test_an_answer_that_takes_too_long_names_the_flag(stack: LocalStack, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "slow", "--gateway", stack.gateway_address, "--timeout-s", "0.5") == 1
    assert "tokens of the answer came within 0.5 s; raise --timeout-s" in capfd.readouterr().err


def test_without_a_gateway_the_error_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert run("generate", "Hi", "--gateway", address) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: UNAVAILABLE: ")
    assert f"is a gateway running at {address}? `baton up`" in error


def demo(model: Path, behaviours: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, LAUNCHER, json.dumps(behaviours), "demo", "--model", str(model), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_demo_answers_shows_and_stops(model: Path) -> None:
    done = demo(model, {})
    assert (done.returncode, done.stderr) == (0, "")
    assert "".join(TOKENS) in done.stdout
    assert "prefill-0 → decode-0" in done.stdout
    assert "trace: 10 spans" in done.stdout
    assert not [process for process in psutil.process_iter() if STUB in _command_line(process)]


@pytest.mark.parametrize(
    ("behaviours", "options", "reason"),
    [
        ({"prefill": "die"}, (), "error: prefill-0 exited with code 1;"),
        ({}, ("--prompt", "fail"), "error: RESOURCE_EXHAUSTED: all decode workers are full"),
    ],
)
def test_a_demo_that_fails_says_why_with_the_logs(
    model: Path, behaviours: dict[str, str], options: tuple[str, ...], reason: str
) -> None:
    done = demo(model, behaviours, *options)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "the end of" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_interrupted_stops_everything(model: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, LAUNCHER, "{}", "demo", "--model", str(model), "--prompt", "slow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while TOKENS[0] not in process.stdout.readline():
            assert process.poll() is None
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert len(family) == 4
    assert not any(child.is_running() for child in family)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
