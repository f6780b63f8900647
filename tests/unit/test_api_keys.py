"""API keys: their file, their comparison, and their limits on a clock of the test's own."""

import os
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from baton.api_keys import ApiKey, KeyBook, hash_of, id_of, new_key, read_keys, write_keys
from baton.cli.app import app
from baton.errors import BatonError, ErrorCode, Reason
from gateway.access.access import Access, Caller
from gateway.access.key_file import KeyFile


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Call:
    """A gRPC context, or an HTTP one, as far as access asks."""

    def __init__(self, key: str | None = None, peer: str = "ipv4:10.0.0.7:99") -> None:
        self._metadata = [("user-agent", "x")] + ([("authorization", f"Bearer {key}")] if key is not None else [])
        self._peer = peer

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._metadata

    def peer(self) -> str:
        return self._peer


def entry(key: str, name: str = "team", **limits: float | int | bool) -> ApiKey:
    return msgspec.convert({"name": name, "id": id_of(key), "sha256": hash_of(key), **limits}, ApiKey)


class Desk:
    def __init__(self, folder: Path, **limits: float | int | bool) -> None:
        self.key, self.file, self.clock = new_key(), folder / "keys.json", Clock()
        write_keys(self.file, [entry(self.key, **limits)])
        self.access = Access(KeyFile(self.file, self.clock), self.clock)

    def caller(self) -> Caller:
        return self.access.caller(Call(self.key))

    def refused(self, call: Call | None = None) -> BatonError:
        with pytest.raises(BatonError) as refused:
            self.access.caller(call).begin() if call else self.caller().begin()
        return refused.value


def test_keys_are_long_random_and_found_by_whole() -> None:
    key, other = new_key(), new_key()
    assert key != other
    book = KeyBook([entry(key, "a"), entry(other, "b")])
    found = book.find(key)
    assert found is not None
    assert found.name == "a"
    swapped = f"bt-{id_of(key)}-{other[-43:]}"
    for wrong in ("", "bt-", key[:-1], key + "x", swapped, key.upper(), "\udcff", "x" * 100_000):
        assert book.find(wrong) is None


def test_the_file_has_no_key_and_is_for_its_owner_only(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.key[-43:] not in desk.file.read_text()
    assert os.stat(desk.file).st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "no JSON list of keys"),
        ('[{"name": "a"}]', "missing required field"),
        ('[{"name": "a b", "id": "0", "sha256": "0"}]', "name: got 'a b'"),
        ('[{"name": "a", "id": "0", "sha256": "0"}]', "expected an id of 16"),
        ('[{"name": "a", "id": "0", "sha256": "0", "rate": 1}]', "unknown field"),
    ],
)
def test_what_is_no_file_of_keys_is_told(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(BatonError, match=says):
        read_keys(tmp_path / "keys.json")


@pytest.mark.parametrize("limit", ["max_concurrent", "requests_per_minute", "max_tokens", "weight"])
def test_limits_are_above_zero_and_ids_unique(limit: str) -> None:
    key = new_key()
    with pytest.raises(BatonError, match=limit):
        KeyBook([entry(key, **{limit: 0})])
    with pytest.raises(BatonError, match="another one"):
        KeyBook([entry(key), entry(key, "again")])


def test_calls_without_a_valid_key_are_told_apart(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for call, reason in ((Call(), Reason.MISSING_API_KEY), (Call(new_key()), Reason.INVALID_API_KEY)):
        error = desk.refused(call)
        assert (error.code, error.reason) == (ErrorCode.UNAUTHENTICATED, reason)
    assert desk.refused(Call("")).reason is Reason.MISSING_API_KEY
    caller = desk.caller()
    assert caller.client.name == f"key:{id_of(desk.key)}"
    assert Access(None).caller(Call()).client.name == "10.0.0.7"


def test_a_changed_file_counts_within_a_second_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk, second = Desk(tmp_path), new_key()
    desk.file.write_text("[")
    desk.clock.now += 1.1
    assert desk.caller().key is not None
    assert "keeping the API keys as they were" in caplog.text
    write_keys(desk.file, [entry(second)])
    assert desk.access._keys is not None
    assert desk.access._keys.find(second) is None  # not looked at yet
    desk.clock.now += 1.1
    assert desk.access._keys.find(second) is not None
    assert desk.access._keys.find(desk.key) is None
    assert not any(key in caplog.text for key in (desk.key, second))


def test_a_rate_lets_ten_seconds_worth_through_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, requests_per_minute=60)
    for _ in range(10):
        desk.caller().begin()()
    error = desk.refused()
    assert (error.code, error.reason) == (ErrorCode.RESOURCE_EXHAUSTED, Reason.RATE_LIMITED)
    assert error.retry_after_s == pytest.approx(1.0)
    assert desk.key not in error.message
    desk.clock.now += 1.0
    desk.caller().begin()()
    desk.refused()
    desk.clock.now += 3600.0
    assert [desk.caller().begin() is not None for _ in range(10)] == [True] * 10
    desk.refused()


def test_requests_at_a_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path, max_concurrent=2)
    ends = [desk.caller().begin() for _ in range(2)]
    assert desk.refused().reason is Reason.TOO_MANY_CONCURRENT
    ends[0]()
    desk.caller().begin()
    desk.refused()


def test_tokens_of_an_answer(tmp_path: Path) -> None:
    caller = Desk(tmp_path, max_tokens=100).caller()
    assert (caller.max_tokens(100, explicit=True), caller.max_tokens(4000, explicit=False)) == (100, 100)
    with pytest.raises(BatonError, match="expected at most 100"):
        caller.max_tokens(101, explicit=True)
    assert Access(None).caller(Call()).max_tokens(10**6, explicit=True) == 10**6


def test_usage_of_idle_keys_is_forgotten(tmp_path: Path) -> None:
    access = Access(None, Clock())
    busy = entry(new_key())
    access.begin(busy)
    for _ in range(1500):
        access.begin(entry(new_key()))()
    assert len(access._usage) <= 1026
    assert access._usage[busy.id].running == 1


def test_the_command_makes_lists_hashes_and_removes(tmp_path: Path) -> None:
    run, file = CliRunner(), str(tmp_path / "keys.json")
    made = run.invoke(app, ["key", "new", "team-a", "--file", file, "--max-concurrent", "3", "--admin"])
    assert made.exit_code == 0
    key = made.stdout.splitlines()[0]
    book = read_keys(Path(file))
    found = book.find(key)
    assert found is not None
    assert (found.name, found.max_concurrent, found.admin) == ("team-a", 3, True)
    listed = run.invoke(app, ["key", "list", "--file", file]).stdout
    assert (found.id in listed, "3 at a time" in listed, key[-43:] in listed) == (True, True, False)
    hashed = run.invoke(app, ["key", "hash"], input=key + "\n").stdout
    assert (found.id in hashed, found.sha256 in hashed) == (True, True)
    run.invoke(app, ["key", "new", "team-b", "--file", file])
    run.invoke(app, ["key", "remove", found.id, "--file", file])
    assert [entry.name for entry in read_keys(Path(file)).keys] == ["team-b"]
