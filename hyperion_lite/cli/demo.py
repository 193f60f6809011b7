"""``hyperion-lite demo``: the whole way from audio to error rates on made-up voices, with nothing but the package."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HELP = "train a small model on made-up voices and show what it learns"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--json", action="store_true", help="make the last line of the output a JSON object")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for the training itself (60)")
    parser.add_argument("--output", type=Path, help="folder for model, report and plot (a new temporary one)")
    parser.add_argument(
        "--data-only",
        type=Path,
        metavar="FOLDER",
        help="only write the voices, as data sets FOLDER/train and FOLDER/test",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the dropouts (0)")


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns 0."""
    from hyperion_lite.core.errors import ConfigError

    if not args.seconds > 0:
        raise ConfigError(f"--seconds must be positive, got {args.seconds:g}")
    if args.data_only is not None:
        return _write_data(args.data_only)
    folder = Path(tempfile.mkdtemp(prefix="hyperion-lite-demo-")) if args.output is None else args.output
    folder.mkdir(parents=True, exist_ok=True)
    audio = Path(tempfile.mkdtemp(prefix="voices-", dir=folder))
    # the bar and the results say what there is to say
    package = logging.getLogger("hyperion_lite")
    level = package.level
    package.setLevel(logging.WARNING)
    try:
        result = _run(audio, folder, args.seconds, args.seed)
    finally:
        package.setLevel(level)
        shutil.rmtree(audio, ignore_errors=True)
    if args.json:
        print(json.dumps(result))
    return 0


def _write_data(folder: Path) -> int:
    from hyperion_lite.cli import demo_task as task

    for name, dataset in _synthesise(task, folder).items():
        print(f"{name}: {len(dataset)} utterances, {dataset.save(folder / name)}")
    paths = f"--data.train.dataset.dataset_path={folder / 'train'} --data.val.dataset.dataset_path={folder / 'test'}"
    print(f"next: hyperion-lite train --config builtin:demo {paths}")
    return 0


def _run(audio: Path, folder: Path, seconds: float, seed: int) -> Mapping[str, float]:
    from hyperion_lite.cli import demo_task as task
    from hyperion_lite.metrics import equal_error_rate
    from hyperion_lite.trainers.report import ReportLogger

    begin = time.perf_counter()
    datasets = _synthesise(task, audio)
    model = task.make_model(seed)
    model.save(folder / "untrained")
    before = task.verify(folder / "untrained", audio / "test", folder / "embeddings_untrained.npz")
    eer_before = equal_error_rate(before.target, before.nontarget)
    print(f"untrained network: EER {100 * eer_before:.1f} % over {len(before.target) + len(before.nontarget)} trials")

    exp_path = folder / "exp"
    shutil.rmtree(exp_path, ignore_errors=True)
    num_steps = task.steps_for(model, seconds)
    train, test = task.make_loaders(datasets)
    report = ReportLogger(exp_path, model, {"best_metric": "val_eer"})
    with task.StepBar(num_steps) as bar:
        task.make_trainer(model, exp_path, num_steps, [bar, report]).fit(train, test)
    after = task.verify(exp_path, audio / "test", folder / "embeddings.npz")
    eer_after = equal_error_rate(after.target, after.nontarget)
    print(f"after {num_steps} training steps: EER {100 * eer_after:.1f} %")
    _plot(before, after, folder / "det.png")
    print(f"model: {exp_path}, report: {exp_path / 'report.md'}")
    print(f'next: hyperion-lite extract --model "{exp_path}" --input FOLDER_OF_AUDIO --output embeddings.npz')
    elapsed = time.perf_counter() - begin
    return {"eer_untrained": eer_before, "eer_trained": eer_after, "seconds": round(elapsed, 1)}


def _synthesise(task: Any, audio: Path) -> Any:
    from tqdm import tqdm

    total = task.NUM_VOICES * (task.TRAIN_UTTERANCES + task.TEST_UTTERANCES)
    with tqdm(total=total, desc="making voices", unit="utt", file=sys.stderr, mininterval=0.5) as bar:
        return task.write_voices(audio, lambda: bar.update() and None)


def _plot(before: Any, after: Any, path: Path) -> None:
    from hyperion_lite.core.errors import MissingDependencyError
    from hyperion_lite.metrics.plots import save_det_plot

    try:
        save_det_plot(path, {name: (v.target, v.nontarget) for name, v in (("untrained", before), ("trained", after))})
    except MissingDependencyError as error:
        print(f"no DET plot: {error}")
    else:
        print(f"DET plot: {path}")
