"""Fetching a pretrained model from the Hugging Face hub, once for all processes of a machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.core.extras import require

CONFIG_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")
SAFE_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model-*.bin", "pytorch_model.bin.index.json")


def fetch_from_hub(
    repository: str, cache_dir: str | None = None, revision: str = "main", force_download: bool = False
) -> Path:
    """Folder in the hub's cache with the files of ``repository``.

    In a process group, rank 0 downloads and the others wait. Where the others do not see what it has downloaded (another machine), the
    first process of each machine downloads in its turn. All processes must call this together.

    Raises:
        FileNotFoundError: no such repository or revision, or no connection and nothing in the cache.
        ModelFileError: another process failed; says which and how.
    """

    def download() -> Path:
        return _download(repository, cache_dir, revision, force_download)

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return download()
    path = _turn(dist.get_rank() == 0, download)
    found: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(found, path.is_dir())
    if not all(found):
        local_rank = os.environ.get("LOCAL_RANK", "0")
        path = _turn(not path.is_dir() and local_rank == "0", download, path)
    return path


def _turn(mine: bool, download: Callable[[], Path], known: Path | None = None) -> Path:
    """Download where it is this process's turn, and tell the others how it went, whatever happened: nobody waits for ever."""
    path, failure = known, None
    if mine:
        try:
            path = download()
        except Exception as error:  # noqa: BLE001 - the others wait for news, then it is raised again
            failure = error
    news: list[tuple[str | None, str | None]] = [(None, None)] * dist.get_world_size()
    dist.all_gather_object(news, (None if path is None else str(path), None if failure is None else repr(failure)))
    if failure is not None:
        raise failure
    for rank, (_, problem) in enumerate(news):
        if problem is not None:
            raise ModelFileError(f"rank {rank} could not fetch the pretrained model: {problem}")
    if path is None:
        path = next(Path(text) for text, _ in news if text is not None)
    return path


def _download(repository: str, cache_dir: str | None, revision: str, force_download: bool) -> Path:
    purpose = "pretrained models on the Hugging Face hub"
    hub, errors = require("huggingface_hub", purpose=purpose), require("huggingface_hub.errors", purpose=purpose)

    def snapshot(*patterns: str) -> Path:
        return Path(
            hub.snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                allow_patterns=[*CONFIG_FILES, *patterns],
            )
        )

    try:
        folder = snapshot(*SAFE_WEIGHTS)
        # the older format only where there is no other: many repositories have both
        return folder if any(folder.glob("model*.safetensors")) else snapshot(*PICKLED_WEIGHTS)
    except (errors.HfHubHTTPError, errors.HFValidationError, FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(
            f"pretrained model {repository!r}, revision {revision!r}: there is no such local directory, and the Hugging Face hub did not "
            f"give it: {error}"
        ) from error
