"""`baton simulate`, `python -m simulator`."""

import sys
from typing import NoReturn

from baton.errors import BatonError
from simulator.cli.app import app


def main() -> NoReturn:
    """Exits with 0 when all went well, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        app()
    except BatonError as error:
        sys.exit(f"error: {error.message}")
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"error: {error}")
    sys.exit(0)


if __name__ == "__main__":
    main()
