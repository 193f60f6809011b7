"""``hyperion-lite train``: trains a model as a configuration says. Also what ``recipes/train.py`` starts under ``torchrun``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

HELP = "train a model as a configuration says"

_PRINT_CONFIG = ("--print_config", "--print-config")


def main(argv: Sequence[str] | None = None, command: str = "train") -> int:
    """Run with ``argv``; exit code 0 when training is complete, 2 for wrong use, 75 when a signal ended it early.

    ``finetune`` as ``command`` refuses to begin with nothing but random weights; all else is the same.

    What a user got wrong is one line on standard error; ``HYPERION_LITE_TRACEBACK=1`` shows where it came from.
    """
    from hyperion_lite.core.errors import HyperionLiteError

    arguments = list(sys.argv[1:] if argv is None else argv)
    rank = int(os.environ.get("RANK", "0"))
    level = logging.INFO if rank == 0 else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        return _train(arguments, command)
    except (HyperionLiteError, OSError, ValueError) as error:
        if os.environ.get("HYPERION_LITE_TRACEBACK"):
            raise
        print(f"hyperion-lite {command}: error: {error}", file=sys.stderr)
        return 2
    finally:
        _leave_group()


def _train(arguments: list[str], command: str) -> int:
    from hyperion_lite.trainers.training_options import commented_yaml, parse_options

    wanted = [token for token in arguments if not token.startswith(_PRINT_CONFIG)]
    parser, config = parse_options(wanted, command)
    if command == "finetune":
        _check_start(config)
    text = commented_yaml(parser, config)
    if len(wanted) < len(arguments):
        print(text, end="")
        return 0
    from hyperion_lite.trainers.training_run import run_training

    logs = run_training(config, text)
    if int(os.environ.get("RANK", "0")) == 0:
        shown = ", ".join(f"{k} {v:.4g}" for k, v in logs.items() if isinstance(v, (int, float)))
        print(f"trained: {shown}; report in {config['trainer']['exp_path']}/report.md")
    return 0


def _check_start(config: Mapping[str, Any]) -> None:
    from hyperion_lite.core.errors import ConfigError
    from hyperion_lite.trainers.finetuning import is_pretrained

    if not is_pretrained(config):
        raise ConfigError(
            "nothing to fine-tune: give finetune.path (a trained model), or model.hf_feats.pretrained_model_path (a Hugging Face "
            "encoder); hyperion-lite train begins with random weights"
        )


def _leave_group() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
