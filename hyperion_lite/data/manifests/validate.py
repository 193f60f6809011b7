"""Checks a data set and lists everything that is wrong with it, instead of stopping at the first fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hyperion_lite.core.errors import AudioFileError, HyperionLiteError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.kaldi_io import is_pipe
from hyperion_lite.data.manifests.arrow_tools import to_text
from hyperion_lite.data.manifests.class_info import ClassInfo
from hyperion_lite.data.manifests.durations import read_headers
from hyperion_lite.data.manifests.enrollment_map import EnrollmentMap
from hyperion_lite.data.manifests.hyper_dataset import HyperDataset, load_trials
from hyperion_lite.data.manifests.problems import LooseTable, Problem, duplicate_problems, read_loosely
from hyperion_lite.data.manifests.recording_set import RecordingSet
from hyperion_lite.data.manifests.segment_set import SegmentSet
from hyperion_lite.data.manifests.trials import TrialNdx
from hyperion_lite.data.manifests.vad_set import VADSet


def validate_dataset(
    dataset: HyperDataset,
    read_audio: bool = True,
    decode: bool = False,
    sample_freq: int | None = None,
    end_tolerance: float = 0.02,
    allow_pipes: bool = False,
    num_jobs: int = 4,
    progress: bool = True,
) -> list[Problem]:
    """All faults of a data set.

    Args:
        dataset: with manifests given as files where possible: those are read leniently, so that each fault has its row.
        read_audio: open each audio file.
        decode: decode each audio file to its end, which finds NaN and damage inside; slow.
        sample_freq: rate that all files must have, in Hz; by default each must have the one its row says.
        end_tolerance: seconds that a segment may reach past the end of its recording, and that a duration may be off.
        allow_pipes: accept storage paths that are shell commands, and run them.
        num_jobs: threads for opening files.
        progress: show a progress bar.

    Returns:
        Problems in the order: recordings, segments, classes, enrolments, trials, VAD.
    """
    sources = dataset.sources()
    problems: list[Problem] = []
    recordings = segments = None
    if "recordings" in sources:
        recordings = read_loosely(RecordingSet, sources["recordings"], "recordings", problems)
    lengths: np.ndarray | None = None
    if recordings is not None:
        problems.extend(duplicate_problems(recordings))
        lengths = _check_numbers(recordings, problems)
        _check_pipes(recordings, allow_pipes, problems)
        if read_audio:
            reader = AudioReader(allow_pipes=allow_pipes)
            check = _AudioCheck(recordings, reader, decode, sample_freq, end_tolerance)
            lengths = check.run(lengths, problems, num_jobs, progress)
    segments = read_loosely(SegmentSet, sources["segments"], "segments", problems)
    if segments is not None:
        problems.extend(duplicate_problems(segments))
        _check_segments(segments, recordings, lengths, end_tolerance, problems)
    _check_classes(sources, segments, problems)
    _check_lists(sources, segments, problems)
    return problems


def _check_numbers(recordings: LooseTable, problems: list[Problem]) -> np.ndarray:
    table = recordings.table
    duration = table.column("duration") if table.has("duration") else np.full(len(table), np.nan)
    for row in np.flatnonzero((duration <= 0) | np.isinf(duration)):
        problems.append(recordings.problem("bad duration", row, f"duration {duration[row]} s; it must be above 0"))
    if table.has("sample_freq"):
        rate = table.table.column("sample_freq").fill_null(1).to_numpy()
        for row in np.flatnonzero(rate <= 0):
            problems.append(
                recordings.problem("wrong sample rate", row, f"sample_freq {rate[row]}; it must be above 0")
            )
    return np.where((duration > 0) & np.isfinite(duration), duration, np.nan)


def _check_pipes(recordings: LooseTable, allow_pipes: bool, problems: list[Problem]) -> None:
    if allow_pipes:
        return
    for row in np.flatnonzero(pc.match_substring(recordings.table.table.column("storage_path"), "|").to_numpy()):
        path = recordings.table.row(int(row))["storage_path"]
        if is_pipe(path):
            problems.append(
                recordings.problem("shell command", row, f"{path!r} would run a shell; write its output to a file")
            )


class _AudioCheck:
    """Opens the files of a recording manifest."""

    def __init__(
        self, recordings: LooseTable, reader: AudioReader, decode: bool, sample_freq: int | None, tolerance: float
    ) -> None:
        self.recordings, self.reader, self.decode = recordings, reader, decode
        self.sample_freq, self.tolerance = sample_freq, tolerance
        table = recordings.table
        self.expected = (
            table.table.column("sample_freq").to_pylist() if table.has("sample_freq") else [None] * len(table)
        )

    def run(self, lengths: np.ndarray, problems: list[Problem], num_jobs: int, progress: bool) -> np.ndarray:
        """Add faults to ``problems``; returns ``lengths`` (recordings,) with the true ones where files could be read."""
        table: RecordingSet = self.recordings.table
        paths = table.table.column("storage_path").to_pylist()
        readable = np.array([bool(p) and (self.reader.allow_pipes or not is_pipe(p)) for p in paths], bool)
        true = lengths.copy()
        for row, info, error in read_headers(table, np.flatnonzero(readable), self.reader, num_jobs, progress):
            if error is None and self.decode:
                error = self._decoding_error(row)
            if error is not None or info is None:
                problems.append(self.recordings.problem("unreadable file", row, getattr(error, "reason", str(error))))
                continue
            if info.num_samples == 0:
                problems.append(self.recordings.problem("unreadable file", row, f"{paths[row]} holds 0 samples"))
                continue
            wanted = self.sample_freq or self.expected[row]
            if wanted and wanted > 0 and info.sample_freq != wanted:
                problems.append(
                    self.recordings.problem(
                        "wrong sample rate", row, f"the file has {info.sample_freq} Hz, expected {wanted} Hz"
                    )
                )
            if abs(lengths[row] - info.duration) > self.tolerance:
                problems.append(
                    self.recordings.problem(
                        "wrong duration",
                        row,
                        f"the manifest says {lengths[row]:.6g} s, the file has {info.duration:.6g} s",
                    )
                )
            true[row] = info.duration
        return true

    def _decoding_error(self, row: int) -> AudioFileError | None:
        recording = self.recordings.table.row(row)
        reader = AudioReader(channel_policy="mean", allow_pipes=self.reader.allow_pipes)
        try:
            reader.read(self.recordings.table.resolve(recording["storage_path"]), id=recording["id"])
        except AudioFileError as error:
            return error
        return None


def _check_segments(
    segments: LooseTable,
    recordings: LooseTable | None,
    lengths: np.ndarray | None,
    tolerance: float,
    problems: list[Problem],
) -> None:
    table: SegmentSet = segments.table
    start, duration = table.start, table.duration
    for row in np.flatnonzero((duration <= 0) | np.isinf(duration)):
        problems.append(segments.problem("bad duration", row, f"duration {duration[row]} s; it must be above 0"))
    for row in np.flatnonzero((start < 0) | np.isinf(start)):
        problems.append(segments.problem("bad start", row, f"start {start[row]} s; it must be 0 or more"))
    if recordings is None or lengths is None:
        return
    ids = table.recording_ids()
    rows = recordings.table.find(ids)
    for row in np.flatnonzero(rows < 0):
        problems.append(
            segments.problem(
                "unknown recording", row, f"recording {ids[int(row)].as_py()!r} is not in {recordings.name}"
            )
        )
    length = np.where(rows >= 0, lengths[rows], np.nan) if len(lengths) else np.full(len(rows), np.nan)
    end = start + np.where(np.isnan(duration), 0.0, duration)
    for row in np.flatnonzero(end > length + tolerance):
        problems.append(
            segments.problem(
                "end past the recording",
                row,
                f"ends at {end[row]:.6g} s, the recording at {length[row]:.6g} s (tolerance {tolerance} s)",
            )
        )
    for row in np.flatnonzero((start >= length) & ~(end > length + tolerance)):
        problems.append(segments.problem("bad start", row, f"starts at {start[row]:.6g} s, the end of the recording"))


def _check_classes(sources: dict[str, Any], segments: LooseTable | None, problems: list[Problem]) -> None:
    for key, source in sources.items():
        if not key.startswith("classes."):
            continue
        name = key.removeprefix("classes.")
        classes = read_loosely(ClassInfo, source, key, problems)
        if classes is None:
            continue
        duplicates = list(duplicate_problems(classes))
        problems.extend(duplicates)
        if not duplicates:
            _check_class_table(classes, problems)
        if segments is None:
            continue
        if not segments.table.has(name):
            message = f"there is a class table {classes.name}, but no column {name!r}"
            problems.append(Problem("missing column", segments.name, None, None, message))
            continue
        values = to_text(segments.table.table.column(name))
        known = (
            pc.is_in(values, value_set=to_text(classes.table.table.column("id")).combine_chunks())
            .to_numpy()
            .astype(bool)
        )
        for row in np.flatnonzero(~known):
            value = values[int(row)].as_py()
            message = f"no {name}" if value is None else f"{name} {value!r} is not in {classes.name}"
            problems.append(segments.problem("unknown class", row, message))


def _check_class_table(classes: LooseTable, problems: list[Problem]) -> None:
    try:
        classes.table._check()
    except HyperionLiteError as error:
        message = str(error).removeprefix(f"{classes.name}: ")
        problems.append(Problem("bad class table", classes.name, None, None, message))


def _check_lists(sources: dict[str, Any], segments: LooseTable | None, problems: list[Problem]) -> None:
    known = set() if segments is None else set(segments.table.ids)
    models: set[str] = set()
    have_models = any(key.startswith("enrollments.") for key in sources)
    for key, source in sources.items():
        if key.startswith("enrollments."):
            enrolments = _load(EnrollmentMap.from_file, source, key, problems)
            if enrolments is not None:
                models.update(enrolments.model_ids)
                _check_enrolments(enrolments, key, known if segments is not None else None, problems)
    for key, source in sources.items():
        if key.startswith("trials."):
            trials = _load(load_trials, source, key, problems)
            if trials is not None:
                model_ids = models if have_models else (known if segments is not None else None)
                _check_trials(trials, key, model_ids, have_models, known if segments is not None else None, problems)
    if "vad" in sources and segments is not None:
        vad = read_loosely(VADSet, sources["vad"], "vad", problems)
        if vad is not None:
            _check_vad(vad, segments, problems)


def _load(load: Any, source: Any, key: str, problems: list[Problem]) -> Any:
    if isinstance(source, (EnrollmentMap, TrialNdx)):
        return source
    faults: list[tuple[int, str]] = []
    try:
        loaded = load(source, check=False, faults=faults)
    except FileNotFoundError:
        problems.append(Problem("missing file", str(source), None, None, "no such file"))
    except (HyperionLiteError, pa.ArrowException, UnicodeDecodeError) as error:
        problems.append(Problem("malformed file", str(source), None, None, str(error).removeprefix(f"{source}: ")))
    else:
        problems.extend(Problem("malformed row", str(source), row, None, message) for row, message in sorted(faults))
        return loaded
    return None


def _missing(name: str, ids: Sequence[str], known: set[str], kind: str, what: str, problems: list[Problem]) -> None:
    # one problem for each id that is missing, at the first row that has it
    rows: dict[str, list[int]] = {}
    for row, id in enumerate(ids):
        if id and id not in known:
            rows.setdefault(id, []).append(row + 1)
    for id, where in rows.items():
        more = f" (and in {len(where) - 1} more rows)" if len(where) > 1 else ""
        problems.append(Problem(kind, name, where[0], id, f"{what}{more}"))


def _check_enrolments(enrolments: EnrollmentMap, key: str, known: set[str] | None, problems: list[Problem]) -> None:
    name = enrolments.file or key
    first: dict[tuple[str, str], int] = {}
    for row, pair in enumerate(enrolments.pairs, 1):
        if all(pair) and first.setdefault(pair, row) != row:
            problems.append(
                Problem("duplicate enrolment", name, row, pair[0], f"segment {pair[1]!r} is in row {first[pair]} too")
            )
    if known is not None:
        ids = [segment for _, segment in enrolments.pairs]
        _missing(name, ids, known, "unknown enrolment segment", "no segment has this id", problems)


def _check_trials(
    trials: TrialNdx, key: str, models: set[str] | None, by_map: bool, known: set[str] | None, problems: list[Problem]
) -> None:
    name = trials.file or key
    for row, first in trials.repeated():
        if not all(trials.pair(row)):
            continue
        problems.append(
            Problem("duplicate trial", name, row + 1, trials.pair(row)[0], f"is the trial of row {first + 1} too")
        )
    checks: Iterable[tuple[list[str], np.ndarray, set[str] | None, str, str]] = (
        (
            trials.model_ids,
            trials.model_rows,
            models,
            "unknown trial model",
            "no enrolment has this model" if by_map else "no segment has this id, and there is no enrolment map",
        ),
        (trials.segment_ids, trials.segment_rows, known, "unknown trial segment", "no segment has this id"),
    )
    for ids, rows, accepted, kind, what in checks:
        if accepted is not None:
            _missing(name, [ids[i] for i in rows], accepted, kind, what, problems)


def _check_vad(vad: LooseTable, segments: LooseTable, problems: list[Problem]) -> None:
    table: VADSet = vad.table
    for row in np.flatnonzero(segments.table.find(table.table.column("id")) < 0):
        problems.append(vad.problem("unknown segment", row, f"is not in {segments.name}"))
    if not table.has_frames and table.has("duration"):
        for row in np.flatnonzero(~(table.column("duration") > 0)):
            problems.append(
                vad.problem("bad duration", row, f"duration {table.column('duration')[row]} s; it must be above 0")
            )
    if not table.has_frames and table.has("start"):
        for row in np.flatnonzero(~np.isfinite(table.column("start"))):
            problems.append(vad.problem("bad start", row, f"start {table.column('start')[row]} s; a number is needed"))
