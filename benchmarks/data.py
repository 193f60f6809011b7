"""All tables about data in one run: manifests, samplers, data set. Each is measured in a process of its own.

    python benchmarks/data.py [--quick]

``--quick`` takes small sizes: to see that everything runs, and the orders of magnitude; the documented numbers are those of the full run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
QUICK: dict[str, tuple[str, ...]] = {
    "manifests": ("--rows", "200000", "--workers", "2"),
    "samplers": ("--segments", "200000"),
    "dataset": ("--recordings", "40", "--workers", "2", "--rounds", "2", "--epochs", "3"),
}
"""Options of each benchmark under ``--quick``; without it each has its own defaults."""


def main() -> int:
    """Run all; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    args = parser.parse_args()
    failed = []
    for name, options in QUICK.items():
        print(f"## {name}\n", flush=True)
        command = [sys.executable, str(FOLDER / f"{name}.py"), *(options if args.quick else ())]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
