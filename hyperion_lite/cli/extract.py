"""``hyperion-lite extract``: embeddings of audio files."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperion_lite.extraction.extractor import Summary

HELP = "extract speaker embeddings from audio files"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--model", required=True, help=".pth file, model, checkpoint or experiment directory, or hf:org/repo"
    )
    parser.add_argument(
        "--input",
        required=True,
        help="folder of audio; text list of paths; CSV with columns id and storage_path; Kaldi wav.scp; dataset.yaml",
    )
    parser.add_argument("--output", required=True, help="out.npz, out.parquet, or ark,scp:out")
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda"), help="where to compute (default: auto)"
    )
    parser.add_argument("--model-name", default="model", help="which weights of a checkpoint, for instance swa_model")
    parser.add_argument(
        "--frontend-rules", default="auto", choices=("auto", "legacy", "modern"), help="release rules of the features"
    )
    parser.add_argument(
        "--lora-merged", action="store_true", help="the weights hold the low-rank adapters of the file already"
    )
    parser.add_argument(
        "--chunk-length",
        type=float,
        default=0.0,
        help="seconds that the encoder (of a Hugging Face model: the pretrained one) sees at a time, 0 for all",
    )
    parser.add_argument("--embed-layer", type=int, default=None, help="head layer to take; the model's by default")
    parser.add_argument(
        "--channels", default="mean", help="files of several channels: mean (default), error, or the index of a channel"
    )
    parser.add_argument(
        "--batch-seconds", type=float, default=None, help="audio in a batch (default: 60 on CPU, 600 on CUDA)"
    )
    parser.add_argument("--num-readers", type=int, default=2, help="threads that read and resample files (default: 2)")
    parser.add_argument(
        "--overwrite", action="store_true", help="forget what an earlier job wrote; otherwise it is continued"
    )
    parser.add_argument(
        "--accept-truncated", action="store_true", help="use what there is of files that end before their header says"
    )
    parser.add_argument(
        "--allow-pipes", action="store_true", help="run the shell commands of a wav.scp (refused by default)"
    )
    parser.add_argument(
        "--fold-batch-norm", action="store_true", help="fold batch norms into convolutions: faster, equal to about 1e-5"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Extract; 0 when every utterance has an embedding, 2 when some failed."""
    import torch

    from hyperion_lite.core.errors import ConfigError
    from hyperion_lite.data.audio_reader import AudioReader
    from hyperion_lite.extraction.batching import BatchLimits
    from hyperion_lite.extraction.extractor import EmbeddingExtractor
    from hyperion_lite.extraction.inputs import list_utterances
    from hyperion_lite.extraction.policy import policy_of_model
    from hyperion_lite.extraction.store import EmbeddingStore
    from hyperion_lite.models.wav2xvectors.waveform_xvector import WaveformXVector

    if args.batch_seconds is not None and not 0 < args.batch_seconds < float("inf"):
        raise ConfigError(f"--batch-seconds must be a positive number, got {args.batch_seconds}")
    device = _device(args.device)
    utterances = list_utterances(args.input, args.allow_pipes)
    model = WaveformXVector.auto_load(
        args.model,
        args.model_name,
        map_location=device,
        frontend_rules=args.frontend_rules,
        lora_merged=args.lora_merged or None,
    )
    policy = policy_of_model(model, str(args.model), args.chunk_length, args.embed_layer, channels=args.channels)
    if args.fold_batch_norm:
        from hyperion_lite.narchs.fold_batch_norm import fold_batch_norm

        model = fold_batch_norm(model)
    reader = AudioReader(
        int(model.sample_frequency),
        channel_policy=_channels(args.channels),
        allow_pipes=args.allow_pipes,
        truncated="accept" if args.accept_truncated else "error",
    )
    seconds = args.batch_seconds or (600.0 if torch.device(device).type == "cuda" else 60.0)
    extractor = EmbeddingExtractor(
        model, reader, BatchLimits(max_seconds=seconds), args.chunk_length, args.embed_layer, args.num_readers
    )
    with _termination_as_exit(), EmbeddingStore(args.output, policy, args.overwrite) as store:
        store.check_ids(u.id for u in utterances)
        summary = _with_progress(extractor, utterances, store, args.quiet)
        total = store.finish([u.id for u in utterances])
    _report(summary, total, args.output)
    return 2 if summary.failures else 0


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Meanwhile SIGTERM ends the program by an exception, so that what was computed is written."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _with_progress(extractor: Any, utterances: Any, store: Any, quiet: bool) -> Summary:
    from tqdm import tqdm

    with tqdm(total=len(utterances), unit="utt", disable=quiet or None, file=sys.stderr) as bar:
        hours = 0.0

        def on_progress(count: int, seconds: float) -> None:
            nonlocal hours
            hours += seconds / 3600
            bar.update(count)
            bar.set_postfix_str(f"{hours:.2f} h", refresh=False)

        return extractor.run(utterances, store, on_progress)


def _device(name: str) -> str:
    import torch

    from hyperion_lite.core.errors import ConfigError

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda was asked for, but torch finds no CUDA device; use --device cpu or auto")
    return name


def _channels(text: str) -> Any:
    from hyperion_lite.core.errors import ConfigError

    if text in ("mean", "error"):
        return text
    if text.isdigit():
        return int(text)
    raise ConfigError(f"--channels must be mean, error or a channel index, got {text!r}")


def _report(summary: Summary, total: int, output: str) -> None:
    for name, reason in summary.failures:
        print(f"failed: {name}: {reason}", file=sys.stderr)
    if summary.silent:
        print(f"silent, their embeddings mean nothing: {', '.join(summary.silent)}", file=sys.stderr)
    print(
        f"{summary.written} embedded, {summary.skipped} done before, {len(summary.failures)} failed; "
        f"{summary.audio_seconds / 3600:.3f} h of audio in {summary.wall_seconds:.1f} s ({summary.times_real_time:.0f} x real time), "
        f"{100 * summary.padded_share:.1f} % padding; {total} embeddings in {output}"
    )
