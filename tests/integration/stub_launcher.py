"""`baton` with stub services: takes a JSON of behaviours by service, then the command line."""

import functools
import json
import signal
import sys
from pathlib import Path

import baton.cli.up
from baton.cli import main
from baton.local import LocalStack

STUB = str(Path(__file__).with_name("stub_service.py"))


def stub_services(**behaviours: str) -> dict[str, list[str]]:
    return {
        name: [sys.executable, STUB, "--behaviour", behaviours.get(name, "serve")]
        for name in ("gateway", "prefill", "decode")
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits SIGINT ignored
    services = stub_services(**json.loads(sys.argv[1]))
    baton.cli.up.LocalStack = functools.partial(LocalStack, services=services)  # type: ignore[misc, assignment]
    main(sys.argv[2:])
