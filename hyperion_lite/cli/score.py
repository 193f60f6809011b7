"""``hyperion-lite score``: cosine scores of embeddings."""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import numpy as np

HELP = "cosine scores of embedding pairs or a trial list"
_MOST_FOR_ALL = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("embeddings", help="file written by extract (.npz, .parquet, .ark, .scp); the enrolment side")
    parser.add_argument("--test", help="embeddings of the test side; the same file by default")
    parser.add_argument("--pair", nargs=2, metavar=("ID1", "ID2"), help="score two ids")
    parser.add_argument(
        "--trials", help="trial list: two ids a line (Kaldi; a target/nontarget label may follow), or CSV"
    )
    parser.add_argument("--output", help="write the scores to this CSV file instead of standard output")


def run(args: argparse.Namespace) -> int:
    """Print ``modelid,segmentid,score`` rows; 0 when all pairs were scored."""
    from hyperion_lite.core.atomic import atomic_file
    from hyperion_lite.core.errors import ConfigError
    from hyperion_lite.extraction.embedding_files import read_embeddings
    from hyperion_lite.extraction.scoring import cosine_scores

    enrolment = read_embeddings(args.embeddings)
    test = read_embeddings(args.test) if args.test else enrolment
    pairs, labels = _pairs(args, enrolment.ids, test.ids)
    try:
        scores = cosine_scores(enrolment, test, pairs)
    except KeyError as error:
        raise ConfigError(error.args[0]) from error
    rows = [(a, b, f"{score:.6f}") for (a, b), score in zip(pairs, scores, strict=True)]
    if args.output:
        with atomic_file(args.output) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            _write_scores(stream, rows)
    else:
        _write_scores(sys.stdout, rows)
    if labels is not None:
        _report(scores[labels], scores[~labels])
    return 0


def _report(target: np.ndarray, nontarget: np.ndarray) -> None:
    from hyperion_lite.metrics.verification import equal_error_rate, min_dcf

    if not len(target) or not len(nontarget):
        print(f"no error rates: {len(target)} target and {len(nontarget)} non-target trials", file=sys.stderr)
        return
    print(
        f"EER {100 * equal_error_rate(target, nontarget):.2f} %, minDCF(0.01) {min_dcf(target, nontarget):.3f}; "
        f"{len(target)} target and {len(nontarget)} non-target trials",
        file=sys.stderr,
    )


def _write_scores(stream: TextIO, rows: list[tuple[str, str, str]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("modelid", "segmentid", "score"))
    writer.writerows(rows)


def _pairs(
    args: argparse.Namespace, enrolment: list[str], test: list[str]
) -> tuple[list[tuple[str, str]], np.ndarray | None]:
    """The pairs to score and, where the trial list has labels, which of them are targets."""
    from hyperion_lite.core.errors import ConfigError
    from hyperion_lite.data.manifests import TrialKey, load_trials

    if args.pair:
        return [(args.pair[0], args.pair[1])], None
    if args.trials:
        trials = load_trials(args.trials)
        return list(trials), trials.target if isinstance(trials, TrialKey) else None
    if len(enrolment) > _MOST_FOR_ALL or len(test) > _MOST_FOR_ALL:
        raise ConfigError(
            f"give --pair or --trials: all pairs are printed only for up to {_MOST_FOR_ALL} embeddings a side"
        )
    return list(itertools.product(enrolment, test) if args.test else itertools.combinations(enrolment, 2)), None
