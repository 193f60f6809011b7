"""``hyperion-lite score``: cosine scores of embeddings."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

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
    """Print ``id1,id2,score`` rows; 0 when all pairs were scored."""
    from hyperion_lite.extraction.embedding_files import read_embeddings
    from hyperion_lite.extraction.scoring import cosine_scores

    enrolment = read_embeddings(args.embeddings)
    test = read_embeddings(args.test) if args.test else enrolment
    pairs = _pairs(args, enrolment.ids, test.ids)
    try:
        scores = cosine_scores(enrolment, test, pairs)
    except KeyError as error:
        print(f"hyperion-lite score: error: {error.args[0]}", file=sys.stderr)
        return 2
    lines = ["modelid,segmentid,score\n"]
    lines += [f"{_quoted(a)},{_quoted(b)},{score:.6f}\n" for (a, b), score in zip(pairs, scores, strict=True)]
    if args.output:
        from hyperion_lite.core.atomic import atomic_file

        with atomic_file(args.output) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
    else:
        sys.stdout.writelines(lines)
    return 0


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text


def _pairs(args: argparse.Namespace, enrolment: list[str], test: list[str]) -> list[tuple[str, str]]:
    from hyperion_lite.core.errors import ConfigError

    if args.pair:
        return [tuple(args.pair)]
    if args.trials:
        return read_trial_pairs(Path(args.trials))
    if len(enrolment) > _MOST_FOR_ALL or len(test) > _MOST_FOR_ALL:
        raise ConfigError(
            f"give --pair or --trials: all pairs are printed only for up to {_MOST_FOR_ALL} embeddings a side"
        )
    if not args.test:
        return list(itertools.combinations(enrolment, 2))
    return list(itertools.product(enrolment, test))
