"""``python -m hyperion_lite`` is the command ``hyperion-lite``."""

from hyperion_lite.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
