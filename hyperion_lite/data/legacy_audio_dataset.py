"""``AudioDataset`` with the keys that older training scripts expect."""

from __future__ import annotations

from typing import ClassVar

from hyperion_lite.data.audio_dataset import AudioDataset


class LegacyAudioDataset(AudioDataset):
    """:class:`AudioDataset` whose items hold ``seg_id`` for ``id`` and ``x`` for ``audio``.

    Further views are ``x_aug_1``, ..., the waveform before augmentation is ``x_orig``; a batch holds ``x`` (batch, max_length) and
    ``x_lengths`` (batch,) int64. All arguments, and all other keys, are those of :class:`AudioDataset`.
    """

    id_key: ClassVar[str] = "seg_id"
    audio_key: ClassVar[str] = "x"
