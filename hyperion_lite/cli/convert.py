"""``hyperion-lite convert``: model files and trainer checkpoints as directories of this package; adapters merged on request."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "turn .pth models and checkpoints of Hyperion into checkpoint directories"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "old",
        metavar="OLD.pth",
        nargs="+",
        help="model file or trainer checkpoint of the original toolkit; with --merge-lora also a model, checkpoint or experiment directory",
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
    parser.add_argument(
        "--lora-merged",
        action="store_true",
        default=None,
        help="the weights of OLD.pth hold its low-rank adapters already: the original toolkit saves so in evaluation mode",
    )
    parser.add_argument(
        "--merge-lora",
        action="store_true",
        help="add low-rank adapters to the weights and write a plain model, which needs no peft",
    )


def run(args: argparse.Namespace) -> int:
    """Convert, and print what was written. Exit code 2 where nothing was."""
    names = args.model_name or ["model"]
    sources, target = [Path(path) for path in args.old], Path(args.new)
    try:
        notes = _merge(args, sources, target, names) if args.merge_lora else _convert(args, sources, target, names)
    except (ValueError, OSError, KeyError) as error:
        import sys

        print(f"hyperion-lite convert: error: {error}", file=sys.stderr)
        return 2
    for name in names:
        print(f"{target / name}")
    for note in notes:
        print(f"note: {note}")
    return 0


def _convert(args: argparse.Namespace, sources: list[Path], target: Path, names: list[str]) -> list[str]:
    from hyperion_lite.trainers.legacy_checkpoint import convert_legacy_checkpoints

    return convert_legacy_checkpoints(sources, target, names, args.trainer_state, args.lora_merged)


def _merge(args: argparse.Namespace, sources: list[Path], target: Path, names: list[str]) -> list[str]:
    from hyperion_lite.models.hyper_torch_model import HyperTorchModel
    from hyperion_lite.models.wav2xvectors.hf_learning import HFLearning
    from hyperion_lite.trainers.legacy_checkpoint import check_names

    if args.trainer_state:
        raise ValueError("--merge-lora makes another model than the one that was trained: leave --trainer-state out")
    check_names(sources, target, names)
    models = [HyperTorchModel.auto_load(source, lora_merged=args.lora_merged) for source in sources]
    for source, model, name in zip(sources, models, names, strict=True):
        if not isinstance(model, HFLearning) or model.hf_feats.lora_settings is None:
            raise ValueError(f"{source} has no low-rank adapters to merge")
        model.merge_lora().save_to_dir(target / name)
    return []
