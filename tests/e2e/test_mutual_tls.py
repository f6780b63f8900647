"""A whole stack whose processes talk over mutual TLS, and need API keys, serves a request."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest

from baton.api_keys import ApiKey, hash_of, id_of, new_key, write_keys
from baton.cli.client import connect, first_model
from baton.config import StackOptions
from baton.errors import BatonError
from baton.local.stack import LocalStack
from tests.fakes.certificates import Authority
from tests.fakes.text_model import write_text_model


def test_a_request_over_mutual_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, key = Authority(), new_key()
    folder = authority.write(tmp_path / "tls")
    keys = tmp_path / "keys.json"
    write_keys(keys, [ApiKey(name="me", id=id_of(key), sha256=hash_of(key))])
    options = StackOptions(
        model=str(write_text_model(tmp_path / "model")),
        load_format="dummy",
        port=0,
        kv_cache_bytes=8 << 20,
        max_num_batched_tokens=64,
        num_threads=1,
        tls_dir=str(folder),
        mtls=True,
        api_keys=str(keys),
    )
    with LocalStack(options) as stack:
        asked = [sys.executable, "-m", "baton.cli", "generate", "--gateway", stack.gateway_address, "--max-tokens", "4"]
        asked += ["--traces", stack.otlp_address, "Say something."]
        environ = {**os.environ, "BATON_TLS_DIR": str(folder), "BATON_API_KEY": key}
        told = subprocess.run(asked, env=environ, capture_output=True, text=True, timeout=120)
        assert told.returncode == 0, told.stderr
        assert "decode-0" in told.stdout  # it was handed over
        assert "kv.transfer" in told.stdout  # spans came over TLS from all services
        environ["BATON_API_KEY"] = new_key()
        refused = subprocess.run(asked, env=environ, capture_output=True, text=True, timeout=120)
        assert "UNAUTHENTICATED" in refused.stderr
        for address in (stack.gateway_address, *stack.worker_addresses.values(), stack.otlp_address):
            with grpc.insecure_channel(address) as channel, pytest.raises(BatonError):
                first_model(channel, address)
        monkeypatch.setenv("BATON_TLS_DIR", str(authority.write(tmp_path / "no-certificate", with_certificate=False)))
        with connect(stack.gateway_address) as channel, pytest.raises(BatonError):
            first_model(channel, stack.gateway_address)
        assert stack.http_url.startswith("https://")
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(stack.http_url.replace("https", "http") + "/ready", timeout=5)
        logs = "".join(log.read_text() for log in stack.run_folder.glob("*.log"))
    assert logs
    for secret in (key, (folder / "key.pem").read_text().splitlines()[1], "Say something"):
        assert secret not in logs
