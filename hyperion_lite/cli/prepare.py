"""``hyperion-lite prepare``: makes, checks and describes data sets."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HELP = "make, check and describe data sets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_folder(actions)
    _add_kaldi(actions)
    _add_lhotse(actions)
    _add_validate(actions)
    _add_stats(actions)


def run(args: argparse.Namespace) -> int:
    """Run one action; returns 0, or 2 where there are problems."""
    return int(_ACTIONS[args.action](args))


def _make(actions: Any, name: str, text: str, **source: Any) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.add_argument("source", **source)
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", type=Path, help="folder for dataset.yaml and the manifests; made if missing")
    parser.add_argument(
        "--format", choices=("csv", "tsv", "parquet", "arrow"), default="csv", help="of the manifests (csv)"
    )
    parser.add_argument(
        "--validation", type=float, default=0.0, metavar="FRACTION", help="also split: train/ and val/ below OUTPUT"
    )
    parser.add_argument(
        "--validation-by",
        default="speaker",
        metavar="COLUMN",
        help="what stays together: speaker, utterance, recording, a column",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the validation split (0)")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-jobs", type=int, default=4, help="threads that read lengths (4)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out files that cannot be read instead of failing"
    )


def _add_folder(actions: Any) -> None:
    parser = _make(
        actions,
        "folder",
        "from the audio files below a folder, speakers from folder names",
        type=Path,
        help="folder of audio files",
    )
    _add_output(parser)
    _add_reading(parser)
    parser.add_argument(
        "--speaker-level",
        type=int,
        default=0,
        help="which folder below SOURCE is the speaker: 0 the first, -1 the one of the file (0)",
    )
    parser.add_argument("--no-speaker", action="store_true", help="no speakers")


def _add_kaldi(actions: Any) -> None:
    parser = _make(actions, "kaldi", "from a Kaldi data folder", type=Path, help="folder with wav.scp")
    _add_output(parser)
    _add_reading(parser)
    parser.add_argument("--allow-pipes", action="store_true", help="accept, and run, shell commands in wav.scp")


def _add_lhotse(actions: Any) -> None:
    parser = _make(
        actions, "lhotse", "from lhotse manifests", type=Path, help="recordings or cuts (.jsonl, .jsonl.gz, .json)"
    )
    _add_output(parser)
    parser.add_argument("--supervisions", type=Path, help="supervisions, for recordings")
    parser.add_argument("--allow-pipes", action="store_true", help="accept recordings whose source is a shell command")


def _add_parts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, nargs="?", help="data set: a folder with dataset.yaml, or the YAML")
    parser.add_argument("--segments", type=Path, help="segment manifest, without a dataset.yaml")
    parser.add_argument("--recordings", type=Path, help="recording manifest")
    parser.add_argument(
        "--classes", action="append", default=[], metavar="NAME=FILE", help="class table of an attribute; repeatable"
    )
    parser.add_argument("--enrollments", action="append", default=[], type=Path, help="enrolment map; repeatable")
    parser.add_argument("--trials", action="append", default=[], type=Path, help="trial list; repeatable")
    parser.add_argument("--vad", type=Path, help="VAD manifest")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_validate(actions: Any) -> None:
    text = "list everything that is wrong with a data set"
    parser = actions.add_parser("validate", help=text, description=text, allow_abbrev=False)
    _add_parts(parser)
    parser.add_argument("--no-audio", action="store_true", help="do not open audio files")
    parser.add_argument("--decode", action="store_true", help="decode audio files to their end (slow)")
    parser.add_argument("--sample-freq", type=int, help="rate that all files must have, in Hz")
    parser.add_argument(
        "--tolerance", type=float, default=0.02, help="seconds a segment may end past its recording (0.02)"
    )
    parser.add_argument(
        "--allow-pipes", action="store_true", help="accept, and run, storage paths that are shell commands"
    )
    parser.add_argument(
        "--fill-durations",
        type=Path,
        metavar="OUTPUT",
        help="if there are no problems, write the data set with missing durations filled in",
    )
    parser.add_argument("--num-jobs", type=int, default=4, help="threads that open files (4)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")


def _add_stats(actions: Any) -> None:
    text = "describe a data set in numbers"
    parser = actions.add_parser("stats", help=text, description=text, allow_abbrev=False)
    _add_parts(parser)


def _folder(args: argparse.Namespace) -> int:
    from hyperion_lite.data.manifests import HyperDataset

    level = None if args.no_speaker else args.speaker_level
    dataset = HyperDataset.from_folder(
        args.source, speaker_level=level, num_jobs=args.num_jobs, progress=not args.no_progress, skip_bad=args.skip_bad
    )
    return _save(dataset, args)


def _kaldi(args: argparse.Namespace) -> int:
    from hyperion_lite.data.manifests import HyperDataset

    dataset = HyperDataset.from_kaldi(
        args.source,
        allow_pipes=args.allow_pipes,
        num_jobs=args.num_jobs,
        progress=not args.no_progress,
        skip_bad=args.skip_bad,
    )
    return _save(dataset, args)


def _lhotse(args: argparse.Namespace) -> int:
    from hyperion_lite.data.manifests import HyperDataset

    return _save(HyperDataset.from_lhotse(args.source, args.supervisions, allow_pipes=args.allow_pipes), args)


def _save(dataset: Any, args: argparse.Namespace) -> int:
    if args.validation:
        try:
            train, validation = dataset.split_validation(args.validation, args.validation_by, args.seed)
        except (ValueError, KeyError) as error:
            print(f"hyperion-lite prepare: error: {error.args[0]}", file=sys.stderr)
            return 2
        train.save(args.output / "train", args.format)
        validation.save(args.output / "val", args.format)
    file = dataset.save(args.output, args.format)
    print(f"{file}: {len(dataset.segments)} segments of {len(dataset.recordings)} recordings")
    for name, table in dataset.classes.items():
        print(f"{name}: {len(table)} classes")
    if args.validation:
        print(f"train: {len(train.segments)} segments, val: {len(validation.segments)} segments")
    return 0


def _dataset(args: argparse.Namespace) -> Any:
    from hyperion_lite.core.errors import ConfigError
    from hyperion_lite.data.manifests import HyperDataset

    parts = [args.segments, args.recordings, args.vad, *args.classes, *args.enrollments, *args.trials]
    if args.source is not None:
        if any(part is not None for part in parts):
            raise ConfigError("give a data set or single manifests, not both")
        return HyperDataset.load(args.source)
    if args.segments is None:
        raise ConfigError("give a data set, or at least --segments")
    classes = {}
    for entry in args.classes:
        name, equals, file = entry.partition("=")
        if not equals:
            raise ConfigError(f"--classes {entry!r}: expected NAME=FILE, such as speaker=speaker.csv")
        classes[name] = file
    return HyperDataset(
        args.segments,
        args.recordings,
        classes,
        {path.stem: path for path in args.enrollments},
        {path.stem: path for path in args.trials},
        args.vad,
    )


def _validate(args: argparse.Namespace) -> int:
    from hyperion_lite.data.manifests.validate import validate_dataset

    dataset = _dataset(args)
    problems = validate_dataset(
        dataset,
        read_audio=not args.no_audio,
        decode=args.decode,
        sample_freq=args.sample_freq,
        end_tolerance=args.tolerance,
        allow_pipes=args.allow_pipes,
        num_jobs=args.num_jobs,
        progress=not args.no_progress,
    )
    if args.fill_durations is not None and not problems:
        dataset.with_durations(num_jobs=args.num_jobs, progress=not args.no_progress).save(args.fill_durations)
    if args.json:
        print(json.dumps([problem.to_dict() for problem in problems], indent=2, ensure_ascii=False))
        return 2 if problems else 0
    for problem in problems:
        print(problem)
    counts = Counter(problem.kind for problem in problems)
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{len(problems)} problems ({summary})" if problems else "no problems")
    return 2 if problems else 0


def _stats(args: argparse.Namespace) -> int:
    from hyperion_lite.data.manifests.stats import dataset_stats

    stats = dataset_stats(_dataset(args))
    print(json.dumps(stats, indent=2, ensure_ascii=False) if args.json else "\n".join(_stat_lines(stats)))
    return 0


def _stat_lines(stats: dict[str, Any], lead: str = "") -> list[str]:
    lines: list[str] = []
    for key, value in stats.items():
        if isinstance(value, dict):
            if value:
                lines += [f"{lead}{key}:", *_stat_lines(value, lead + "  ")]
        else:
            lines.append(f"{lead}{key:<24} {value:.6g}" if isinstance(value, float) else f"{lead}{key:<24} {value}")
    return lines


_ACTIONS = {"folder": _folder, "kaldi": _kaldi, "lhotse": _lhotse, "validate": _validate, "stats": _stats}
