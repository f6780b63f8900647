"""The launcher with stub services: all start, a death is told, and nothing ever outlives it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from stub_launcher import stub_services

from baton.config import StackOptions
from baton.errors import BatonError, ErrorCode
from baton.local import LocalStack
from baton.local.commands import available_cores
from baton.local.run_folder import read_run_file

LAUNCHER = str(Path(__file__).with_name("stub_launcher.py"))


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that passes for a model, and a cache folder of the test's own."""
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def make_stack(model: Path, behaviours: dict[str, str] | None = None, **options: object) -> LocalStack:
    shape = StackOptions(**({"model": str(model), "port": 0, "start_timeout_s": 30} | options))  # type: ignore[arg-type]
    return LocalStack(shape, services=stub_services(**(behaviours or {})), stop_grace_s=3)


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def arguments_of(stack: LocalStack, name: str) -> list[str]:
    """What the stub was called with, out of its log."""
    first = (stack.run_folder / f"{name}.log").read_text().splitlines()[0]
    return list(json.loads(first.removeprefix("arguments: ").partition(" others:")[0]))


@pytest.fixture
def new_children() -> Callable[[], list[psutil.Process]]:
    """What this process has started since the test began; other tests' stacks may be running."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    return lambda: [p for p in psutil.Process().children(recursive=True) if p.pid not in before]


def test_all_processes_serve_and_stop(model: Path) -> None:
    with make_stack(model, prefill=2, decode=2) as stack:
        pids = stack.pids
        assert sorted(pids) == ["decode-0", "decode-1", "gateway", "prefill-0", "prefill-1", "redis"]
        assert sorted(stack.worker_addresses) == ["decode-0", "decode-1", "prefill-0", "prefill-1"]
        addresses = {stack.gateway_address, stack.otlp_address, *stack.worker_addresses.values()}
        assert len(addresses) == 6
        assert redis.Redis.from_url(stack.redis_url).ping()
        stack.check_running()
    assert all(gone(pid) for pid in pids.values())
    stack.stop()


def test_services_get_the_options_as_flags(model: Path) -> None:
    with make_stack(model, dtype="bfloat16", lease_s=7.5, max_model_len=256, model_name="mine") as stack:
        worker, gateway = arguments_of(stack, "prefill-0"), arguments_of(stack, "gateway")
    expected = {
        "--name": "prefill-0",
        "--model": str(model),
        "--model-name": "mine",
        "--host": "127.0.0.1",
        "--port": "0",
        "--redis-url": stack.redis_url,
        "--otlp-endpoint": stack.otlp_address,
        "--load-format": "auto",
        "--model-impl": "auto",
        "--device": "cpu",
        "--dtype": "bfloat16",
        "--block-size": "16",
        "--gpu-memory-utilization": "0.45",
        "--swap-space-bytes": str(512 << 20),
        "--max-model-len": "256",
        "--max-num-batched-tokens": "512",
        "--max-num-seqs": "64",
        "--scheduling-policy": "fcfs",
        "--num-threads": str(available_cores()),
        "--connector": "nixl",
        "--lease-s": "7.5",
        "--longest-write-s": "2.0",
        "--clock-margin-s": "1.0",
        "--drain-timeout-s": "20.0",
        "--port-file": str(stack.run_folder / "prefill-0.port"),
        "--metrics-port": "0",
        "--metrics-port-file": str(stack.run_folder / "prefill-0.metrics-port"),
    }
    flags = worker[2:]
    assert dict(zip(flags[::2], flags[1::2], strict=True)) == expected
    common = {
        "--behaviour",
        "--load-format",
        "--model",
        "--model-name",
        "--host",
        "--port",
        "--port-file",
        "--metrics-port",
        "--metrics-port-file",
        "--redis-url",
    }
    own = {"--http-port", "--http-port-file", "--tool-call-parser", "--reasoning-parser"}
    assert set(gateway[::2]) == common | own | {"--otlp-endpoint"}


def test_an_aggregated_stack_has_one_kind_of_worker(model: Path) -> None:
    with make_stack(model, aggregated=True) as stack:
        assert sorted(stack.pids) == ["aggregated-0", "gateway", "redis"]
        assert "--aggregated" in arguments_of(stack, "aggregated-0")


def test_a_child_that_dies_at_the_start_is_told_with_its_log_and_nothing_is_left(
    model: Path, new_children: Callable[[], list[psutil.Process]]
) -> None:
    stack = make_stack(model, {"decode": "die"})
    started = time.monotonic()
    with pytest.raises(BatonError, match=r"decode-0 exited with code 1; (.|\n)*the model does not fit") as caught:
        stack.start()
    assert caught.value.code is ErrorCode.INTERNAL
    assert time.monotonic() - started < 15, "the others must not be waited for"
    assert stack.pids == {}
    assert not new_children()


def test_a_child_that_never_serves_is_told_and_nothing_is_left(
    model: Path, new_children: Callable[[], list[psutil.Process]]
) -> None:
    stack = make_stack(model, {"prefill": "never-ready"}, start_timeout_s=6)
    with pytest.raises(BatonError, match=r"prefill-0 did not reach gRPC health SERVING .*--start-timeout-s"):
        stack.start()
    assert not new_children()


def test_a_later_death_is_told(model: Path) -> None:
    with make_stack(model, {"prefill": "die-when-told"}) as stack:
        (stack.run_folder / "prefill-0.port.die").touch()
        wait_until(lambda: "prefill-0" not in stack.pids)
        with pytest.raises(BatonError, match=r"prefill-0 exited with code 1; (.|\n)*out of memory"):
            stack.check_running()


def test_a_worker_that_has_left_in_order_is_no_failure(model: Path) -> None:
    with make_stack(model, {"decode": "leave"}) as stack:
        os.kill(stack.pids["decode-0"], signal.SIGTERM)
        wait_until(lambda: "decode-0" not in stack.pids)
        stack.check_running()
        old_address = stack.worker_addresses["decode-0"]
        assert stack.restart("decode-0", same_port=True) == old_address


def test_a_killed_worker_can_be_started_again(model: Path) -> None:
    with make_stack(model) as stack:
        old_pid, old_address = stack.pids["decode-0"], stack.worker_addresses["decode-0"]
        stack.kill("decode-0")
        assert gone(old_pid)
        stack.check_running()
        assert stack.restart("decode-0") == stack.worker_addresses["decode-0"] != old_address
        assert stack.pids["decode-0"] != old_pid
        with pytest.raises(BatonError, match="got process 'nosuch', expected one of decode-0, gateway"):
            stack.kill("nosuch")


def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children(
    model: Path, new_children: Callable[[], list[psutil.Process]]
) -> None:
    stack = make_stack(model, {"decode": "ignore-sigterm", "prefill": "with-child"})
    stack.start()
    family = new_children()
    assert len(family) == 5
    stack.stop()
    assert all(gone(process.pid) for process in family)


def test_a_stack_started_by_a_short_lived_thread_stays(model: Path) -> None:
    stack = make_stack(model)
    starter = threading.Thread(target=stack.start)
    starter.start()
    starter.join()
    time.sleep(0.3)
    stack.check_running()
    stack.stop()


def test_a_taken_port_is_refused_before_anything_starts(
    model: Path, new_children: Callable[[], list[psutil.Process]]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BatonError, match=f"cannot listen on 127.0.0.1:{port} .*choose another --port"):
            make_stack(model, port=port).start()
    assert not new_children()


@pytest.mark.parametrize("host", ["invalid", "192.0.2.1", "a..b"])
def test_a_host_that_is_not_this_machine_is_refused_before_anything_starts(
    model: Path, new_children: Callable[[], list[psutil.Process]], host: str
) -> None:
    with pytest.raises(BatonError, match=f"got --host {host}, expected an address of this machine") as raised:
        make_stack(model, host=host).start()
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT
    assert not (model.parent / "home" / "run").exists()
    assert not new_children()


class Launcher:
    """`baton up` as a process of its own."""

    def __init__(self, model: Path, **behaviours: str) -> None:
        command = [sys.executable, LAUNCHER, json.dumps(behaviours), "up", "--model", str(model), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.family: list[psutil.Process] = []

    def wait_for_children(self, count: int) -> None:
        def there() -> bool:
            self.family = psutil.Process(self.process.pid).children(recursive=True)
            return len(self.family) >= count

        wait_until(there, 20)

    def wait_for_up(self) -> None:
        wait_until(lambda: read_run_file() is not None, 20)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def assert_nothing_is_left(self) -> None:
        assert self.family
        wait_until(lambda: all(gone(process.pid) for process in self.family))


@pytest.fixture
def launch(model: Path) -> Iterator[Callable[..., Launcher]]:
    launchers: list[Launcher] = []

    def start(**behaviours: str) -> Launcher:
        launchers.append(Launcher(model, **behaviours))
        return launchers[-1]

    yield start
    for launcher in launchers:
        launcher.process.kill()
        launcher.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(launch: Callable[..., Launcher], number: signal.Signals) -> None:
    launcher = launch()
    launcher.wait_for_up()
    assert len(launcher.family) == 4
    launcher.process.send_signal(number)
    output, _ = launcher.process.communicate(timeout=20)
    assert launcher.process.returncode == 0
    assert output.endswith("Stopping.\nStopped.\n")
    assert "Traceback" not in output
    launcher.assert_nothing_is_left()
    assert read_run_file() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_the_start_stops_everything(
    launch: Callable[..., Launcher], number: signal.Signals
) -> None:
    launcher = launch(decode="never-ready")
    launcher.wait_for_children(3)
    launcher.process.send_signal(number)
    output, _ = launcher.process.communicate(timeout=20)
    assert "Traceback" not in output
    launcher.assert_nothing_is_left()


def test_a_launcher_that_is_killed_leaves_nothing(launch: Callable[..., Launcher]) -> None:
    launcher = launch(decode="ignore-sigterm")
    launcher.wait_for_up()
    os.kill(launcher.process.pid, signal.SIGKILL)
    launcher.process.wait()
    launcher.assert_nothing_is_left()
    assert read_run_file() is None, "the run file of a dead launcher does not count"


def test_a_launcher_that_is_killed_in_the_middle_of_the_start_leaves_nothing(launch: Callable[..., Launcher]) -> None:
    launcher = launch(gateway="never-ready")
    launcher.wait_for_children(4)
    os.kill(launcher.process.pid, signal.SIGKILL)
    launcher.process.wait()
    launcher.assert_nothing_is_left()


def test_a_death_ends_baton_up_with_the_reason(launch: Callable[..., Launcher]) -> None:
    launcher = launch(prefill="die-when-told")
    launcher.wait_for_up()
    running = read_run_file()
    assert running is not None
    (Path(running.run_folder) / "prefill-0.port.die").touch()
    output, _ = launcher.process.communicate(timeout=30)
    assert launcher.process.returncode == 1
    assert "error: prefill-0 exited with code 1;" in output
    assert "  out of memory" in output
    assert "Traceback" not in output
