"""Entry point of ``hyperion-lite``: finds the module of a subcommand and imports only that one.

A subcommand module has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(args) -> exit code``.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from hyperion_lite._version import __version__
from hyperion_lite.cli.command_parser import CommandParser
from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.errors import HyperionLiteError

COMMANDS = {
    "convert": "turn .pth models and checkpoints of Hyperion into checkpoint directories",
    "demo": "train a small model on made-up voices and show what it learns",
    "train": "train a model as a configuration says",
    "finetune": "train a trained model, or a Hugging Face encoder, further",
    "extract": "extract speaker embeddings from audio files",
    "score": "cosine scores of embedding pairs or a trial list",
    "pth": "look into .pth checkpoints, and take tensors out",
    "prepare": "make, check and describe data sets",
}

OWN_PARSER = ("train", "finetune")
"""Commands whose options depend on a configuration: their module has ``main(argv)`` instead."""


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser of the command line; only ``command`` gets its arguments."""
    description = "Speaker embeddings from audio, their training, and a safe look into PyTorch checkpoints."
    parser = CommandParser(prog="hyperion-lite", description=description)
    parser.add_argument("--version", action="version", version=f"hyperion-lite {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        sub = subparsers.add_parser(name, help=text, description=text)
        if name == command:
            importlib.import_module(f"hyperion_lite.cli.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hyperion-lite`` with ``argv`` and return its exit code: 0 done, 2 wrong use or failed items.

    What a user can cause (wrong options, files that are missing, damaged or not writable) is one line on standard error;
    ``HYPERION_LITE_TRACEBACK=1`` shows where it came from.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((token for token in arguments if not token.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        print(
            f"hyperion-lite: error: {unknown_choice('command', command, COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    if command in OWN_PARSER:
        return int(
            importlib.import_module(f"hyperion_lite.cli.{command}").main(arguments[arguments.index(command) + 1 :])
        )
    args = build_parser(command).parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        return int(importlib.import_module(f"hyperion_lite.cli.{args.command}").run(args))
    except (HyperionLiteError, OSError, ValueError) as error:
        if os.environ.get("HYPERION_LITE_TRACEBACK"):
            raise
        print(f"hyperion-lite {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"hyperion-lite {args.command}: interrupted", file=sys.stderr)
        return 130
