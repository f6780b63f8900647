"""Arize Phoenix beside the local stack: a page with all traces, without docker.

A process of its own, from the extra `ui` or from any environment on the PATH, so that its dependencies need not meet
a worker's.
"""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from baton.errors import BatonError, ErrorCode
from baton.local.ports import check_can_listen, free_port

_HOST = "127.0.0.1"


class TracingUi(NamedTuple):
    """What to run, and where it is then."""

    command: tuple[str, ...]
    environment: dict[str, str]
    url: str
    health_url: str
    otlp_address: str  # host:port of its receiver of spans


def tracing_ui(port: int, run_folder: Path) -> TracingUi:
    """Keeps everything in `run_folder`; a `port` of 0 is any free one.

    Raises:
        BatonError: FAILED_PRECONDITION when Phoenix is not installed; as `check_can_listen` for the port.
    """
    folders = (str(Path(sys.executable).parent), None)  # None: the PATH
    found = next((path for path in (shutil.which("phoenix", path=folder) for folder in folders) if path), None)
    if found is None:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            "--ui: Arize Phoenix is not installed; `pip install arize-phoenix`, here or in an environment whose "
            "`phoenix` is on the PATH, or leave --ui out",
        )
    check_can_listen(_HOST, port, "--ui-port")
    port, otlp_port = port or free_port(), free_port()
    environment = {
        "PHOENIX_HOST": _HOST,
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(otlp_port),
        "PHOENIX_WORKING_DIR": str(run_folder / "phoenix"),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PYTHONPATH": "",  # ours is not for it
    }
    url = f"http://{_HOST}:{port}"
    return TracingUi((found, "serve"), environment, url, f"{url}/healthz", f"{_HOST}:{otlp_port}")
