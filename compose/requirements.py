"""Prints what pyproject.toml asks for, so that an image's layer of dependencies stays when only code has changed.

python compose/requirements.py [EXTRA …]
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """One a line, as pip reads them: Baton's own, and those of the extras."""
    project = tomllib.loads(pyproject)["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return wanted


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml").read_text(), sys.argv[1:])))
