"""A worker's service whose engine cores come from a nursery: `python nursed_service.py SOCKET MODULE FLAGS`."""

import runpy
import sys
from pathlib import Path

import engine.client

_STUB = str(Path(__file__).with_name("core_stub.py"))

if __name__ == "__main__":
    _, path, module, *flags = sys.argv
    engine.client.CORE_COMMAND = (sys.executable, "-I", "-S", _STUB, path)
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__")
