"""Where seeking in an Ogg Vorbis file can be trusted.

The end of a Vorbis stream is cut to the sample by the position written in its last page. Seeking into that page counts backwards from
there without regard to the cut, and lands up to a block beside the sample asked for (libvorbis, as of 1.3.7). Decoding forward from an
earlier page is exact.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

_MAX_PAGE = 27 + 255 + 255 * 255
_MAX_BLOCK = 8192


def exact_seek_limit(file: BinaryIO, size: int, num_samples: int, start: int = 0) -> int:
    """Highest sample that a seek reaches exactly; later ones are to be reached by decoding forward from it.

    Args:
        file: open for binary reading, seekable.
        size: bytes in the file.
        num_samples: length of the stream.
        start: where the stream begins in the file.
    """
    first = max(start, size - 3 * _MAX_PAGE)
    file.seek(first)
    pages = _page_positions(file.read(size - first))
    if len(pages) < 2:
        return 0
    # positions may count from another sample than the first one of the file
    offset = pages[-1] - num_samples
    return max(0, pages[-2] - offset - _MAX_BLOCK)


def _page_positions(data: bytes) -> list[int]:
    """Sample positions at the ends of the pages in ``data`` that belong to the stream of the last page."""
    found: list[tuple[int, int]] = []
    at = data.find(b"OggS")
    while 0 <= at <= len(data) - 27:
        segments = data[at + 26]
        position, serial = struct.unpack_from("<qI", data, at + 6)
        length = 27 + segments + sum(data[at + 27 : at + 27 + segments])
        whole = at + length <= len(data) and data[at + 4] == 0 and data[at + length : at + length + 4] in (b"OggS", b"")
        if whole and position >= 0:
            found.append((position, serial))
        at = data.find(b"OggS", at + (length if whole else 4))
    return [position for position, serial in found if serial == found[-1][1]]
