"""How much a file may cost before it is refused."""

from __future__ import annotations

from dataclasses import dataclass

MAX_INT64 = 2**63 - 1


@dataclass(frozen=True)
class Limits:
    """Bounds on time and memory; what exceeds one raises `PthLimitError`.

    The defaults hold for any checkpoint seen in practice. Counts that the file states are besides always compared
    with what the file holds, whatever the limits say.

    Args:
        max_pickle_bytes: largest pickle that is interpreted, in bytes.
        max_opcodes: most pickle instructions executed.
        max_memo: most memo entries of a pickle.
        max_depth: deepest nesting of containers, and of pickle marks.
        max_value_bytes: most memory (estimated, in bytes) of the Python values that a pickle builds.
        max_value_ratio: most memory of those values, in bytes for each byte of pickle (beyond the first 32 MiB).
            An empty set costs 216 bytes for one byte of pickle; real files cost about 20.
        max_wide_keys: most dictionary keys and set elements that are neither strings nor small integers. Unlike
            those, they can be chosen to collide, and n colliding keys cost n * n comparisons.
        max_entries: most entries of a zip archive.
        max_inflate_ratio: largest uncompressed / compressed size of a deflated entry above 1 MiB.
        max_inflate_bytes: largest deflated entry that is inflated, in bytes.
        max_expand_bytes: largest array made of a tensor that repeats elements of its storage, in bytes.
        max_rank: most dimensions of a tensor.
        max_names: most tensor names: a container reached by many paths gives its tensors a name for each.
        max_name_chars: total length of all tensor names, in characters.
        max_stream_bytes: most bytes read from a file object that cannot seek.
    """

    max_pickle_bytes: int = 256 << 20
    max_opcodes: int = 20_000_000
    max_memo: int = 10_000_000
    max_depth: int = 1000
    max_value_bytes: int = 1 << 30
    max_value_ratio: int = 64
    max_wide_keys: int = 10_000
    max_entries: int = 1_000_000
    max_inflate_ratio: int = 256
    max_inflate_bytes: int = 4 << 30
    max_expand_bytes: int = 1 << 30
    max_rank: int = 64
    max_names: int = 1_000_000
    max_name_chars: int = 64 << 20
    max_stream_bytes: int = 4 << 30


DEFAULT_LIMITS = Limits()
