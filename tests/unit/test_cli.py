"""The command line without servers: help, options and their origins, errors, exit codes."""

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from baton.arguments import parse_address
from baton.cli import checks, doctor, main, passthrough
from baton.cli.app import app
from baton.cli.checks import Result, Status
from baton.cli.generate import parse_biases
from baton.config import StackOptions, environment_variable, resolve
from baton.errors import BatonError
from baton.local.run_folder import RunFile, new_run_folder, write_run_file

COMMANDS = ["demo", "up", "generate", "drain", "fetch", "config", "doctor", "gateway", "prefill", "decode", "bench"]


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def fails(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def test_help_lists_all_commands() -> None:
    output = run("--help")
    assert all(f" {command} " in output for command in COMMANDS)


@pytest.mark.parametrize("command", ["demo", "up", "config"])
def test_the_commands_of_the_stack_share_its_flags(command: str) -> None:
    output = run(command, "--help")
    for name in (
        "--model",
        "--aggregated",
        "--prefill",
        "--decode",
        "--port",
        "--dtype",
        "--kv-cache-bytes",
        "--lease-s",
    ):
        assert f"{name} " in output
    assert "(default: 8080)" in output
    assert "BATON_KV_CACHE_BYTES" in output


@pytest.mark.parametrize("command", ["generate", "fetch", "doctor"])
def test_the_other_commands_explain_themselves(command: str) -> None:
    assert f"Usage: baton {command}" in run(command, "--help")


def test_config_tells_each_value_and_its_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATON_PREFILL", "3")
    monkeypatch.setenv("BATON_PORT", "9000")
    monkeypatch.setenv("BATON_AGGREGATED", "no")
    shown = json.loads(run("config", "--json", "--port", "9001", "--num-threads", "2"))
    options = shown["options"]
    assert shown["cache_folder"] == str(tmp_path)
    assert options["port"] == {"value": 9001, "source": "flag --port"}
    assert options["prefill"] == {"value": 3, "source": "environment BATON_PREFILL"}
    assert options["aggregated"] == {"value": False, "source": "environment BATON_AGGREGATED"}
    assert options["num_threads"] == {"value": 2, "source": "flag --num-threads"}
    assert options["dtype"] == {"value": "float32", "source": "default"}
    assert list(options) == list(StackOptions.__dataclass_fields__)
    table = run("config", "--no-aggregated")
    assert "flag --aggregated" in table
    assert "environment BATON_PREFILL" in table


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"BATON_PORT": "http"}, "got BATON_PORT='http', expected int"),
        ({"BATON_AGGREGATED": "perhaps"}, "got BATON_AGGREGATED='perhaps', expected one of 1, true"),
        ({"BATON_DTYPE": "int8"}, r"got --dtype int8, expected one of float32.*environment BATON_DTYPE"),
        ({"BATON_PREFILL": "0"}, "got --prefill 0, expected at least 1"),
        ({"BATON_PORT": "70000"}, "got --port 70000, expected 0 to 65535"),
        ({"BATON_LEASE_S": "0"}, "got --lease-s 0.0, expected seconds above 0"),
        ({"BATON_LEASE_S": "nan"}, "got --lease-s nan, expected seconds above 0"),
        ({"BATON_LONGEST_WRITE_S": "inf"}, "got --longest-write-s inf, expected seconds above 0"),
        ({"BATON_CLOCK_MARGIN_S": "-1"}, "got --clock-margin-s -1.0, expected seconds above 0"),
        ({"BATON_CLOCK_MARGIN_S": "0"}, "got --clock-margin-s 0.0, expected seconds above 0"),
        ({"BATON_START_TIMEOUT_S": "nan"}, "got --start-timeout-s nan, expected seconds above 0"),
        ({"BATON_MAX_MODEL_LEN": "1"}, "got --max-model-len 1, expected at least 2"),
        ({"BATON_KV_CACHE_BYTES": "1GB"}, "BATON_KV_CACHE_BYTES: got '1GB', expected a size such as"),
        ({"BATON_CONNECTOR": "inproc"}, "got --connector inproc, expected nixl.*environment BATON_CONNECTOR"),
    ],
)
def test_a_wrong_option_is_refused_by_name(environment: dict[str, str], message: str) -> None:
    with pytest.raises(BatonError, match=message):
        resolve({}, environment)


def test_sizes_are_read_with_their_unit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BATON_KV_CACHE_BYTES", "256MiB")
    for arguments, expected in (((), 256 << 20), (("--kv-cache-bytes", "1.5GiB"), 3 << 29)):
        shown = json.loads(run("config", "--json", *arguments))
        assert shown["options"]["kv_cache_bytes"]["value"] == expected
    assert fails("config", "--kv-cache-bytes", "2GB") == 1
    assert capsys.readouterr().err == (
        "error: --kv-cache-bytes: got '2GB', expected a size such as 2GiB, 512MiB or 1048576\n"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "-1"], "got --seed -1, expected 0 to 18446744073709551615"),
        (["--seed", str(2**64)], "got --seed 18446744073709551616, expected 0 to"),
        (["--max-tokens", "9999999999"], "got --max-tokens 9999999999, expected 0 to 2147483647"),
        (["--top-k", "-1"], "got --top-k -1, expected 0 to 2147483647"),
        (["--stop-token-id", "5", "--stop-token-id", "-1"], "got --stop-token-id -1, expected 0 to 2147483647"),
        (["--stop", "\udcff"], "--stop: got bytes that are not UTF-8"),
        (["--system", "\udcff"], "--system: got bytes that are not UTF-8"),
        (["--timeout-s", "0"], "got --timeout-s 0, expected seconds above 0 and at most 86400"),
        (["--timeout-s", "-1"], "got --timeout-s -1, expected seconds above 0"),
        (["--timeout-s", "nan"], "got --timeout-s nan, expected seconds above 0"),
        (["--timeout-s", "inf"], "got --timeout-s inf, expected seconds above 0"),
        (["--no-chat", "--system", "be brief"], "got --system with --no-chat"),
        (["--gateway", "localhost"], "--gateway: got 'localhost', expected host:port"),
        (["--gateway", "http://localhost:8080"], "--gateway: got 'http://localhost:8080', expected host:port"),
        (["--gateway", "localhost:70000"], "--gateway: got 'localhost:70000', expected host:port"),
        (["--gateway", "::1:8080"], "--gateway: got '::1:8080', expected host:port"),
        (["--traces", "localhost:"], "--traces: got 'localhost:', expected host:port"),
    ],
)
def test_generate_names_the_flag_that_is_wrong(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails("generate", "Hi", *flags) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_the_demo_names_it_too_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails("demo", "--max-tokens", "-1") == 1
    assert capsys.readouterr().err == "error: got --max-tokens -1, expected 0 to 2147483647\n"


@pytest.mark.parametrize("address", ["localhost:8080", "127.0.0.1:1", "[::1]:65535", "gateway.example:80"])
def test_addresses(address: str) -> None:
    assert parse_address(address) == address


@pytest.mark.parametrize("command", ["up", "generate"])
def test_help_is_whole_in_a_narrow_terminal(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    output = run(command, "--help")
    assert "…" not in output
    if command == "up":
        assert all(environment_variable(name) in output for name in StackOptions.__dataclass_fields__)


def test_an_error_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert fails("up", "--model", "nosuch", "--port", "0") == 1
    captured = capsys.readouterr()
    models = tmp_path / "models"
    expected = f"model 'nosuch' is not in {models} and is no folder; run `baton fetch nosuch` first"
    assert captured.err == f"error: {expected}\n"


def test_fetch_refuses_a_name_that_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails("fetch", "nosuch") == 1
    assert capsys.readouterr().err.startswith("error: got model 'nosuch', expected smollm2-135m, a folder")


def test_a_cache_folder_that_cannot_be_made_is_an_error_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "file"))
    assert fails("fetch", "owner/name") == 1
    assert capsys.readouterr().err.startswith("error: [Errno 20] Not a directory")


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        ("decode-0", "no stack runs on this machine"),
        ("host:0", "worker: got 'host:0', expected host:port"),
        ("127.0.0.1:9", "worker 127.0.0.1:9 does not answer"),
    ],
)
def test_drain_says_which_worker_it_cannot_find(worker: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails("drain", worker) == 1
    assert message in capsys.readouterr().err


def test_drain_finds_a_worker_of_the_running_stack(capsys: pytest.CaptureFixture[str]) -> None:
    folder = new_run_folder()
    write_run_file(RunFile(os.getpid(), "", "", str(folder)))
    (folder / "decode-1.port").write_text("9")
    assert fails("drain", "decode-0") == 1
    assert "expected one of the running stack's (decode-1) or host:port" in capsys.readouterr().err
    assert fails("drain", "decode-1") == 1
    assert "worker decode-1 does not answer at 127.0.0.1:9" in capsys.readouterr().err


def test_logit_biases_are_pairs() -> None:
    assert parse_biases(["5=1.5", "7=-100"]) == {5: 1.5, 7: -100.0}
    for value in ("5", "x=1", "5=y", "=1", f"{2**40}=1"):
        with pytest.raises(BatonError, match=r"--logit-bias: got '.*', expected TOKEN_ID=BIAS"):
            parse_biases([value])


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails("nosuch") == 2
    assert "No such command" in capsys.readouterr().err
    assert fails("generate") == 2
    assert "Missing argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "module"), [("gateway", "gateway"), ("prefill", "prefill_service"), ("decode", "decode_service")]
)
@pytest.mark.parametrize("arguments", [["--help"], ["--port", "0", "--aggregated", "-x", "--a=b", "word"], []])
def test_services_are_run_with_all_arguments(
    monkeypatch: pytest.MonkeyPatch, command: str, module: str, arguments: list[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(passthrough.os, "execv", lambda *call: calls.append(call))
    run(command, *arguments)
    assert calls == [(sys.executable, [sys.executable, "-P", "-m", module, *arguments])]


def test_doctor_fails_only_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    good, odd = Result(Status.OK, "good", "1.0"), Result(Status.WARN, "odd", "old", "update it")
    monkeypatch.setattr(doctor, "ALL_CHECKS", [lambda: good, lambda: odd])
    output = run("doctor")
    assert "ok" in output
    assert "update it" in output
    bad = Result(Status.MISSING, "bad", "not installed", "install it")
    monkeypatch.setattr(doctor, "ALL_CHECKS", [lambda: good, lambda: bad])
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "install it" in result.output


def test_the_checks_report_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_version", lambda package: None)
    monkeypatch.setattr(checks, "redis_server_binary", lambda: None)
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    results = {result.name: result.status for result in (check() for check in checks.ALL_CHECKS)}
    missing = {name for name, status in results.items() if status is Status.MISSING}
    assert missing == {"torch", "NIXL", "redis-server"}
    assert (results["triton"], results["model"], results["GPU"]) == (Status.OK, Status.WARN, Status.OK)
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert checks.check_triton().status is Status.WARN  # there is a GPU


def test_the_doctor_tells_whether_the_cpu_kernels_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "_version", lambda package: "2.0")
    package = tmp_path / "baton_kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # before the installed one
    for body, status, found in (
        ("def available(): return True", Status.OK, "compiled"),
        ("def available(): return False", Status.WARN, "not compiled"),
        ("raise OSError('libgomp.so.1: not found')", Status.WARN, "do not load: OSError: libgomp.so.1: not found"),
    ):
        (package / "native.py").write_text(body)
        result = checks.check_cpu_kernels()
        assert (result.status, result.found) == (status, found)
        assert (status is Status.OK) or "install a C compiler" in result.advice


@pytest.mark.parametrize("package", ["nixl", "nixl-cu12", "nixl-cu13"])
def test_any_build_of_the_pinned_nixl_will_do(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    installed = {package: checks.NIXL_VERSION}
    ran: list[str] = []
    monkeypatch.setattr(checks, "_version", installed.get)
    monkeypatch.setattr(checks, "_run", lambda command: (ran.append(command[-1]) is None, ""))
    assert checks.check_nixl() == Result(Status.OK, "NIXL", f"{package} {checks.NIXL_VERSION}")
    assert ran == [f"import {package.replace('-', '_')}._bindings"]
    monkeypatch.setattr(checks, "_run", lambda command: (False, "no such library"))
    assert checks.check_nixl().status is Status.MISSING
    installed[package] = "1.4.0"
    wrong = checks.check_nixl()
    assert (wrong.status, wrong.found) == (Status.MISSING, f"{package} 1.4.0; expected {checks.NIXL_VERSION}")
    assert f"nixl-cu12=={checks.NIXL_VERSION}" in wrong.advice


def test_the_doctor_asks_for_what_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert f"nixl-cu12=={checks.NIXL_VERSION}" in project["optional-dependencies"]["worker"]
    monkeypatch.setattr(checks, "_version", lambda package: None)
    advice = checks.check_nixl().advice
    assert f"pip install nixl-cu12=={checks.NIXL_VERSION}" in advice
    assert "inproc" not in advice  # it cannot work between processes


def test_a_broken_torch_does_not_break_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_version", lambda package: "2.0")
    monkeypatch.setattr(checks.sys, "executable", "/bin/false")
    result = checks.check_torch()
    assert result.status is Status.MISSING
    assert "does not import: exit code 1" in result.found
