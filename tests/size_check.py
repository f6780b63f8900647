"""Fails when a source file has grown past what one reason needs: 400 lines (generated code aside)."""

import subprocess
import sys
from pathlib import Path

MAX_LINES = 400


def main() -> int:
    """Prints the files that are too long; 1 when there is one."""
    root = Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True).stdout
    files = [root / name for name in listed.splitlines() if not name.startswith("baton/rpc/")]
    lengths = {file: len(file.read_text().splitlines()) for file in files if file.is_file()}
    for file, length in lengths.items():
        if length > MAX_LINES:
            print(f"{file.relative_to(root)}: got {length} lines, expected at most {MAX_LINES}; split it by reason")
    if (root / "kernels" / "__init__.py").exists():
        print("kernels/__init__.py exists: a top-level package `kernels` breaks `import transformers`; delete it")
        return 1
    return int(any(length > MAX_LINES for length in lengths.values()))


if __name__ == "__main__":
    sys.exit(main())
