"""``hyperion-lite pth``: look into a PyTorch checkpoint without running it, and take tensors out. Needs no torch.

Results go to the standard output, one-line errors and progress to the standard error. Exit codes: 0 done, 1 differences found (diff
only), 2 the file or the request cannot be handled.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from types import FrameType

HELP = "look into .pth checkpoints, and take tensors out"

# action -> module, function, help
_ACTIONS = {
    "info": ("pth_look", "info", "what the file is: format, contents, voice-model fields"),
    "list": ("pth_look", "list_tensors", "every tensor: dtype, shape, stride, storage, shared groups"),
    "show": ("pth_look", "show", "one tensor's first values, or any other value of the file"),
    "stats": ("pth_numbers", "stats", "min, max, mean, std, NaN and Inf counts of every tensor"),
    "verify": ("pth_numbers", "verify", "check the checksums of everything, and a voice model's shapes"),
    "diff": ("pth_numbers", "diff", "which tensors of two files differ, and by how much"),
    "convert": ("pth_write", "convert", "write the tensors to safetensors or npz"),
    "quantize": ("pth_write", "quantize", "write int8 weights and their scales to safetensors"),
}
_BROKEN_PIPE_EXIT = 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parsers = {
        name: actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        for name, (_, _, text) in _ACTIONS.items()
    }
    for name, sub in parsers.items():
        if name == "diff":
            sub.add_argument("file", metavar="A", help="a checkpoint")
            sub.add_argument("other", metavar="B", help="the checkpoint it is compared with")
        else:
            sub.add_argument("file", metavar="FILE", help="a file written by torch.save, whatever its extension")
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        sub.add_argument(
            "--allow-torchscript", action="store_true", help="read the parameters of a TorchScript archive as data"
        )
        if name not in ("info", "show", "verify"):
            sub.add_argument(
                "--include", metavar="GLOB", action="append", help="only tensors whose dotted name matches (repeatable)"
            )
            sub.add_argument(
                "--exclude", metavar="GLOB", action="append", help="leave out tensors whose name matches (repeatable)"
            )
    _add_show(parsers["show"])
    parsers["diff"].add_argument("--atol", type=_tolerance, default=0.0, help="absolute tolerance (default: 0)")
    parsers["diff"].add_argument("--rtol", type=_tolerance, default=0.0, help="tolerance relative to B (default: 0)")
    _add_convert(parsers["convert"])
    _add_quantize(parsers["quantize"])


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="dotted name of a tensor, or of another value such as config.0")
    parser.add_argument(
        "--values", type=_count, default=8, metavar="N", help="how many values to print, row-major (default: 8)"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "output", metavar="OUT", help="the file to write; an older one is replaced when the new one is complete"
    )
    parser.add_argument(
        "--prefix", default="", metavar="NAME", help="only tensors below this name, which is dropped from theirs"
    )
    parser.add_argument("--no-verify", action="store_true", help="do not compare the checksums of what is read")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    _add_output(parser)
    parser.add_argument("--format", choices=("safetensors", "npz"), help="of the output (default: by its extension)")
    # the names are repeated here because numpy, which the module that owns them imports, is not needed to parse a command line
    dtypes = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    parser.add_argument("--dtype", choices=dtypes, help="of the floating-point tensors (default: as stored)")
    parser.add_argument(
        "--fuse-weight-norm", action="store_true", help="write effective weights for weight-normalised layers"
    )
    parser.add_argument(
        "--tied",
        choices=("copy", "once"),
        default="copy",
        help="write a tensor of several names under each, or once (safetensors only)",
    )


def _add_quantize(parser: argparse.ArgumentParser) -> None:
    _add_output(parser)
    parser.add_argument("--axis", type=int, default=0, help="output-channel axis of the weights (default: 0)")
    parser.add_argument(
        "--channel-axis", type=_channel_axis, action="append", default=[], metavar="GLOB=AXIS",
        help="the axis of some weights, e.g. 'dec.ups.*=1' for transposed convolutions (repeatable, first match counts)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", metavar="GLOB", action="append", help="tensors that stay in floating point (repeatable)"
    )
    parser.add_argument(
        "--no-fuse-weight-norm", action="store_true", help="quantise the halves of weight-normalised layers instead"
    )


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _channel_axis(text: str) -> tuple[str, int]:
    glob, equals, axis = text.rpartition("=")
    if not equals or not glob:
        raise argparse.ArgumentTypeError(f"{text!r} is not GLOB=AXIS")
    return glob, int(axis)


def run(args: argparse.Namespace) -> int:
    """Run one action and return its exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        # names are printed as far as the terminal can; a name it lacks must not end the listing
        sys.stdout.reconfigure(errors="backslashreplace")
    previous = signal.signal(signal.SIGTERM, _terminate) if _in_main_thread() else None
    try:
        module, function, _ = _ACTIONS[args.action]
        code = int(getattr(importlib.import_module(f"hyperion_lite.cli.{module}"), function)(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader has left (head, less); what is still buffered has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE_EXIT
    except (ValueError, KeyError, OSError, ImportError) as error:
        print(f"hyperion-lite pth: error: {_message(error)}", file=sys.stderr)
        return 2
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _terminate(number: int, frame: FrameType | None) -> None:
    # unwinding removes an unfinished output; the default action would leave it
    raise SystemExit(128 + number)


def _message(error: BaseException) -> str:
    from hyperion_lite.cli.pth_text import printable

    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        # the text of a KeyError is the repr of its argument
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    # the reader speaks of its own argument
    return printable(" ".join(text.splitlines()).replace("allow_torchscript=True", "--allow-torchscript"))
