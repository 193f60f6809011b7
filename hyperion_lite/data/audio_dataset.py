"""``AudioDataset``: waveforms by segment id, or by a range of a segment, with their attributes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.utils.data

from hyperion_lite.core.config import Configurable, nearest
from hyperion_lite.core.errors import AudioFileError, ConfigError
from hyperion_lite.data.audio_file import Allocate
from hyperion_lite.data.audio_reader import AudioData, AudioReader
from hyperion_lite.data.augment import Augmented, Occasion, load_pipelines
from hyperion_lite.data.augment.signal import fit_length
from hyperion_lite.data.collate import collate
from hyperion_lite.data.item_list import ItemList, RowAllocator
from hyperion_lite.data.manifests import ClassInfo, HyperDataset, RecordingSet, SegmentSet
from hyperion_lite.data.numbers import whole_number
from hyperion_lite.data.rng import item_rng
from hyperion_lite.data.segment_audio import Place, SegmentAudio, SegmentRangeError
from hyperion_lite.data.segment_request import Request, parse_request
from hyperion_lite.data.segment_table import SegmentTable, open_tables

logger = logging.getLogger(__name__)

_MAX_REPLACEMENTS = 20
# slot 0 of the shared numbers is the epoch; each process counts its skips in a slot of its own, so that none needs a lock
_SLOTS = 256


class _Wanted(NamedTuple):
    # what a key asks for: where it is, and the fields of the item that come from the tables
    request: Request
    place: Place
    fields: dict[str, Any]


class AudioDataset(Configurable, torch.utils.data.Dataset):
    """Reads audio and attributes of segments.

    ``dataset["id"]`` is a whole segment, ``dataset[("id", start, duration)]`` a range of it (seconds from the start of the segment),
    ``dataset[3]`` the segment in that row, and a list of these a list of items. The keys of the samplers are such strings and tuples
    which also carry the epoch and the occurrence; with plain ones the epoch is that of :meth:`set_epoch` and the occurrence 0.

    An item is a dictionary:

    * ``id``: the segment; ``sample_freq``: int, Hz; ``audio``: (num_samples,) float32 tensor, full scale 1 times ``wav_scale``;
    * ``audio_aug_1``, ``audio_aug_2``, ...: further augmented views, where more than one is made; ``audio_orig``: the waveform before
      augmentation, with ``return_orig``;
    * a class index (int) for each name of ``class_names``, and the values of the columns of ``extra_attrs``;
    * ``repeat`` (bool) for keys of a sampler: the item only fills up the ranks;
    * ``aug_info``: what each applied augmenter drew, with ``return_aug_info``.

    A range may leave its segment by 1 ms, by which it is moved inside, keeping its number of samples. A key with ``pad_to`` gets zeros
    after the augmentation, up to that duration. Without ``segments_file`` every recording is one segment.

    Two items of equal key, epoch and occurrence are bit-identical in any process. Data sets can be sent to worker processes started in
    any way; large manifests are then shared, not copied.

    Args:
        recordings_file: table of recordings.
        segments_file: table of segments.
        dataset_path: data set (folder or ``dataset.yaml``) in place of the tables, which are used first where they are given too.
        class_names: columns that become class indices.
        class_files: their class tables, in the same order or by name; default: those of the data set, else the values that occur in
            the segments, sorted.
        extra_attrs: columns to put into the items as they are.
        return_segment_info: the same as ``extra_attrs``, under the name that the original toolkit uses; a name that is in
            ``class_names`` too gives the class index.
        time_durs_file: table of ids and durations (seconds) that replace those of the segments.
        aug_cfgs: augmentation: a YAML file, a list of files (one pipeline each), or the content of a file.
        num_augs: augmented views that each pipeline makes of an item.
        return_orig: add the waveform before augmentation.
        return_aug_info: add what the augmenters drew.
        target_sample_freq: rate to convert all audio to, in Hz.
        channel_policy: for files of several channels: ``error``, ``mean``, or the index of the channel to take (from 0).
        wav_scale: factor on the samples, applied last.
        is_val: for validation: augmentation, if there is any, is the same in every epoch.
        seed: of the augmentation and of the replacements.
        on_error: for files that cannot be read: ``raise``, or ``skip``: another segment, drawn from (seed, epoch, segment,
            occurrence), takes its place, and :attr:`num_skipped` counts it.
        allow_pipes: run storage paths that are shell commands.
        dataset: tables in memory, in place of ``dataset_path``; not part of the configuration.

    Raises:
        ConfigError: options that do not fit together.
        KeyError: a column or class is missing; names it.
        ManifestError: a segment without label, or whose class the table does not have.
    """

    config_exclude = ("dataset",)
    id_key: ClassVar[str] = "id"
    audio_key: ClassVar[str] = "audio"

    def __init__(
        self,
        recordings_file: str | None = None,
        segments_file: str | None = None,
        dataset_path: str | None = None,
        class_names: list[str] | None = None,
        class_files: list[str] | dict[str, str] | None = None,
        extra_attrs: list[str] | None = None,
        return_segment_info: list[str] | None = None,
        time_durs_file: str | None = None,
        aug_cfgs: str | list[Any] | dict[str, Any] | None = None,
        num_augs: int = 1,
        return_orig: bool = False,
        return_aug_info: bool = False,
        target_sample_freq: int | None = None,
        channel_policy: Literal["error", "mean"] | int = "error",
        wav_scale: float = 1.0,
        is_val: bool = False,
        seed: int = 112358,
        on_error: Literal["raise", "skip"] = "raise",
        allow_pipes: bool = False,
        dataset: HyperDataset | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        tables = open_tables(recordings_file, segments_file, dataset_path, dataset, time_durs_file)
        reader = AudioReader(target_sample_freq, channel_policy, allow_pipes=allow_pipes)
        self._audio = SegmentAudio.of_tables(tables.segments, tables.recordings, reader, tables.origin)
        attributes = [*(extra_attrs or []), *(return_segment_info or [])]
        self._check_reserved([*attributes, *(class_names or [])])
        self._table = SegmentTable.build(
            self._audio.segments, class_names or [], class_files, attributes, tables.classes
        )
        self.pipelines = load_pipelines(aug_cfgs)
        self.num_augs = num_augs
        self.return_orig = return_orig
        self.return_aug_info = return_aug_info
        self.wav_scale = float(wav_scale)
        self.is_val = is_val
        self.seed = seed
        self.on_error = on_error
        self._check_views()
        # in shared memory: a worker that lives through the epochs sees the epoch, and the main process the skips of the workers
        self._shared = torch.zeros(_SLOTS, dtype=torch.int64).share_memory_()

    def _check_reserved(self, names: Sequence[str]) -> None:
        audio = self.audio_key
        reserved = {self.id_key, "sample_freq", "repeat", "aug_info", audio, f"{audio}_orig", f"{audio}_lengths"}
        taken = [name for name in names if name in reserved or name.startswith(f"{audio}_aug_")]
        if taken:
            raise ConfigError(f"column {taken[0]!r} cannot be returned: items have that key already; rename the column")

    def _check_views(self) -> None:
        if self.num_augs < 1:
            raise ConfigError(f"num_augs must be at least 1, got {self.num_augs}")
        if self.num_augs > 1 and not self.pipelines:
            raise ConfigError(f"num_augs is {self.num_augs}, but aug_cfgs names no augmentation")
        growing = {name for pipeline in self.pipelines for name in pipeline.new_classes}
        for name in growing:
            if name not in self.class_infos:
                raise ConfigError(
                    f"speed perturbation makes new classes of {name!r}, which is not in class_names"
                    f"{nearest(name, self.class_infos)}"
                )
        if growing and len(self.pipelines) * self.num_augs > 1:
            raise ConfigError(
                "speed perturbation with new_classes needs one view: num_augs 1 and one configuration in aug_cfgs"
            )

    # --- what is in it

    def __len__(self) -> int:
        return len(self._audio)

    @property
    def segments(self) -> SegmentSet:
        """The table of segments."""
        return self._audio.segments

    @property
    def recordings(self) -> RecordingSet:
        """The table of recordings."""
        return self._audio.recordings

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the segments, in table order."""
        return self._audio.segments.ids

    @property
    def class_infos(self) -> Mapping[str, ClassInfo]:
        """The class tables by name."""
        return self._table.class_infos

    def num_classes(self, name: str) -> int:
        """Number of different indices of the class ``name``, those that speed perturbation makes included.

        Raises:
            KeyError: not one of ``class_names``.
        """
        if name not in self.class_infos:
            raise KeyError(f"no class {name!r}{nearest(name, self.class_infos)}; classes: {list(self.class_infos)}")
        factors = [pipeline.class_multiplier for pipeline in self.pipelines if name in pipeline.new_classes]
        return len(self.class_infos[name]) * (factors[0] if factors else 1)

    # --- epochs and skipped files

    @property
    def epoch(self) -> int:
        """The epoch of items that are asked for by plain keys."""
        return int(self._shared[0])

    def set_epoch(self, epoch: int) -> None:
        """Set :attr:`epoch`, in running workers too. Keys of the samplers carry their own epoch and need no call.

        Raises:
            ValueError: negative or not whole.
        """
        self._shared[0] = whole_number("epoch", epoch)

    @property
    def num_skipped(self) -> int:
        """How many items ``on_error="skip"`` has replaced so far, in this process and its workers."""
        return int(self._shared[1:].sum())

    # --- items

    def __getitem__(self, key: Any) -> Any:
        """The item of one key, or a list of items for a list of keys.

        Raises:
            KeyError: unknown id.
            TypeError: not a key.
            AudioFileError: unreadable or empty file; a range that is empty or leaves its segment (``AudioRangeError``).
        """
        if isinstance(key, (list, np.ndarray)):
            return self._items([self._find(one) for one in key])
        return self._items([self._find(key)])[0]

    def __getitems__(self, keys: Sequence[Any] | np.ndarray) -> list[dict[str, Any]]:
        """The items of the keys of a batch, as loaders ask for them. :meth:`collate` makes a batch of them without copying the audio."""
        found = [self._find(key) for key in keys]
        durations = {wanted.request.duration for wanted in found}
        if self.pipelines or len(durations) != 1 or None in durations:
            return self._items(found)
        allocator = RowAllocator(len(found))
        items = self._items(found, allocator)
        return items if allocator.rows is None else ItemList(items, allocator.rows)

    def _items(self, wanted: Sequence[_Wanted], allocator: RowAllocator | None = None) -> list[dict[str, Any]]:
        # One thing is done for all items before the next: code runs fast while it is in the processor's caches, and every decoded
        # file drives everything else out of them.
        allocates = [None if allocator is None else partial(allocator.row, row) for row in range(len(wanted))]
        loaded = [self._load(one, allocate) for one, allocate in zip(wanted, allocates, strict=True)]
        return [self._item(one, audio) for one, audio in zip(wanted, loaded, strict=True)]

    def _find(self, key: Any) -> _Wanted:
        request = parse_request(key, len(self))
        place = self._audio.place(self._audio.row(request.id) if request.row is None else request.row)
        return _Wanted(request, place, self._table.fields(place.row))

    def _load(self, wanted: _Wanted, allocate: Allocate | None = None) -> AudioData | AudioFileError:
        # the audio; under on_error="skip" what is wrong with it
        request, place, _ = wanted
        try:
            return self._audio.read(place, request.start, request.duration, allocate=allocate)
        except SegmentRangeError:
            raise
        except AudioFileError as error:
            if self.on_error == "raise":
                raise
            return error

    def _item(self, wanted: _Wanted, loaded: AudioData | AudioFileError) -> dict[str, Any]:
        if isinstance(loaded, AudioFileError):
            return self._replacement(wanted, loaded)
        try:
            return self._make_item(wanted, loaded)
        except AudioFileError as error:  # of an augmentation
            if self.on_error == "raise":
                raise
            return self._replacement(wanted, error)

    def _make_item(self, wanted: _Wanted, loaded: AudioData) -> dict[str, Any]:
        (request, place, fields), (audio, sample_freq) = wanted, loaded
        views = self._views(audio, sample_freq, request, place.id)
        waveforms = {
            f"{self.audio_key}_aug_{index}" if index else self.audio_key: v.audio for index, v in enumerate(views)
        }
        if self.return_orig:
            waveforms[f"{self.audio_key}_orig"] = audio
        length = 0 if request.pad_to is None else round(request.pad_to * sample_freq)
        item: dict[str, Any] = {self.id_key: place.id, "sample_freq": sample_freq}
        item.update(self._tensors(waveforms, length))
        item.update(fields)
        for name in self.pipelines[0].new_classes if self.pipelines else ():
            item[name] += views[0].class_shift * len(self.class_infos[name])
        if request.repeat is not None:
            item["repeat"] = request.repeat
        if self.return_aug_info:
            item["aug_info"] = [view.info for view in views]
        return item

    def _views(self, audio: np.ndarray, sample_freq: int, request: Request, segment_id: str) -> list[Augmented]:
        if not self.pipelines:
            return [Augmented(audio)]
        epoch = 0 if self.is_val else self._epoch_of(request)
        views: list[Augmented] = []
        for pipeline in self.pipelines:
            for _ in range(self.num_augs):
                occasion = Occasion(self.seed, epoch, segment_id, request.occurrence, view=len(views))
                views.append(pipeline(audio, sample_freq, occasion))
        return views

    def _tensors(self, waveforms: Mapping[str, np.ndarray], min_length: int) -> dict[str, torch.Tensor]:
        finished: dict[str, np.ndarray] = {}
        for name, audio in waveforms.items():
            audio = fit_length(audio, max(audio.size, min_length))
            if self.wav_scale != 1.0:
                audio = audio * np.float32(self.wav_scale)
            # a view that no augmenter changed is the array of another one; tensors do not share memory
            elif not audio.flags.writeable or any(np.may_share_memory(audio, other) for other in finished.values()):
                audio = audio.copy()
            finished[name] = audio
        return {name: torch.from_numpy(audio) for name, audio in finished.items()}

    def _epoch_of(self, request: Request) -> int:
        return self.epoch if request.epoch is None else request.epoch

    def _replacement(self, wanted: _Wanted, error: AudioFileError) -> dict[str, Any]:
        request, place, _ = wanted
        for attempt in range(_MAX_REPLACEMENTS):
            rng = item_rng(self.seed, self._epoch_of(request), place.id, request.occurrence, f"replace/{attempt}")
            other = self._audio.place(int(rng.integers(len(self))))
            try:
                stretch = request.moved_to(rng, None if request.duration is None else self._audio.duration(other))
                if stretch is None:
                    continue
                audio = self._audio.read(other, stretch.start, stretch.duration)
                item = self._make_item(_Wanted(stretch, other, self._table.fields(other.row)), audio)
            except AudioFileError as other_error:
                logger.warning("the replacement of segment %r cannot be read either: %s", place.id, other_error)
                continue
            worker = torch.utils.data.get_worker_info()
            self._shared[1 + (0 if worker is None else 1 + worker.id % (_SLOTS - 2))] += 1
            logger.warning("segment %r is replaced by %r: %s", place.id, other.id, error)
            return item
        logger.error("no segment found that could replace %r in %d attempts", place.id, _MAX_REPLACEMENTS)
        raise error

    @classmethod
    def collate(cls, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Batch of items, longest first: ``audio`` (batch, max_length) padded with 0, ``audio_lengths`` (batch,) int64, and so on.

        See :func:`hyperion_lite.data.collate.collate`.
        """
        return collate(items, length_key=cls.audio_key, id_key=cls.id_key)
