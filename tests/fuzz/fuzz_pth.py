"""Coverage-guided fuzzing of the `.pth` reader with atheris (libFuzzer).

    python -m tests.fuzz.fuzz_pth CORPUS_FOLDER -max_total_time=60

Options are libFuzzer's. Seeds are added to the corpus folder. Exit status 0: no crash, hang or memory growth.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["hyperion_lite.pth"]):
    from tests.fuzz.target import exercise

DEFAULTS = ["-timeout=10", "-rss_limit_mb=1500", "-max_len=65536"]


def main(arguments: list[str]) -> None:
    """Add the seeds to the corpus, then fuzz."""
    folders = [argument for argument in arguments[1:] if not argument.startswith("-")]
    if folders:
        from tests.fuzz.seeds import write_seeds

        write_seeds(Path(folders[0]))
    given = {argument.split("=")[0] for argument in arguments}
    chosen = [option for option in DEFAULTS if option.split("=")[0] not in given]
    atheris.Setup([*arguments, *chosen], exercise)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
