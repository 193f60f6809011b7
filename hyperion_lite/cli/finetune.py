"""``hyperion-lite finetune``: trains a trained model, or a Hugging Face encoder, further. Also what ``recipes/finetune.py`` starts."""

from __future__ import annotations

from collections.abc import Sequence

from hyperion_lite.cli import train

HELP = "train a trained model, or a Hugging Face encoder, further"


def main(argv: Sequence[str] | None = None) -> int:
    """Run with ``argv``: the options of ``hyperion-lite train``, whose run has to begin with trained weights. Exit codes as there."""
    return train.main(argv, "finetune")
