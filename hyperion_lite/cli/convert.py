"""``hyperion-lite convert``: model files and trainer checkpoints of the original toolkit as directories of this package."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "turn .pth models and checkpoints of Hyperion into checkpoint directories"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "old", metavar="OLD.pth", nargs="+", help="model file or trainer checkpoint of the original toolkit"
    )
    parser.add_argument(
        "new", metavar="NEW_DIR", help="directory to write, or one with other models of the same checkpoint"
    )
    parser.add_argument(
        "--model-name",
        metavar="NAME",
        action="append",
        help="directory of the model inside NEW_DIR (default: model); once for each file",
    )
    parser.add_argument(
        "--trainer-state",
        action="store_true",
        help="write optimizer, schedulers, progress and random state too, so that training resumes from "
        "EXPERIMENT/checkpoint_ep0001_step0000000003 or whatever the checkpoint's epoch and step are",
    )


def run(args: argparse.Namespace) -> int:
    """Convert, and print what was written. Exit code 2 where nothing was."""
    from hyperion_lite.trainers.legacy_checkpoint import convert_legacy_checkpoints

    names = args.model_name or ["model"]
    try:
        notes = convert_legacy_checkpoints([Path(p) for p in args.old], Path(args.new), names, args.trainer_state)
    except (ValueError, OSError, KeyError) as error:
        import sys

        print(f"hyperion-lite convert: error: {error}", file=sys.stderr)
        return 2
    for name in names:
        print(f"{Path(args.new) / name}")
    for note in notes:
        print(f"note: {note}")
    return 0
