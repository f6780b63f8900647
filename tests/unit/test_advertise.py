"""What a worker tells others to connect to, where it finds that out itself."""

from types import SimpleNamespace

import pytest

from baton.errors import BatonError
from baton.types import KvLayout, Role, WorkerRef
from baton.worker.advertise import own_address
from baton.worker.identity import Identity
from baton.worker.options import parse_options
from engine.options import engine_config

WORKER = WorkerRef("p0", "i0")
FACTS = SimpleNamespace(layout=KvLayout(2, 2, 8, 16, "float32", "f"), max_model_len=64, num_blocks=4)
AUTO = ["--model", "/m", "--host", "0.0.0.0", "--advertise-address", "auto", "--redis-url", "redis://127.0.0.1:1/0"]


def test_it_is_this_machines_address_on_the_way_to_redis_whether_or_not_that_answers() -> None:
    assert own_address("redis://127.0.0.1:1/0") == "127.0.0.1"
    assert own_address("redis://[::1]") == "[::1]"


@pytest.mark.parametrize(
    ("url", "says"), [("unix:///tmp/redis", "a URL with a host"), ("redis://no.such.host.invalid", "start Redis first")]
)
def test_no_address_is_said_with_what_to_do(url: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BatonError, match=says):
        own_address(url)
    with pytest.raises(SystemExit) as exited:
        parse_options("decode", [*AUTO, "--redis-url", url])
    assert exited.value.code == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("port", "advertised"), [("9000", "127.0.0.1:9000"), ("0", "127.0.0.1:4321")])
def test_gateways_get_the_bound_port_and_writers_of_kv_the_host(port: str, advertised: str) -> None:
    options = parse_options("decode", [*AUTO, "--port", port])
    assert Identity(options, Role.DECODE, WORKER).record(FACTS, 4321).address == advertised
    assert engine_config(options, Role.DECODE, WORKER).advertised_host == "127.0.0.1"


def test_an_address_that_is_given_stays() -> None:
    options = parse_options("decode", [*AUTO, "--advertise-address", "decode.example:7000"])
    assert Identity(options, Role.DECODE, WORKER).record(FACTS, 4321).address == "decode.example:7000"
