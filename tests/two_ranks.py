"""Two ranks of one process group, for tests. A fork server starts them, so that only it imports what takes long."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hyperion_lite.trainers.distribution import init_distributed

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.trainers.runs", "torch.distributed.fsdp", "torch.distributed.optim"])


def in_two_ranks(function: Callable[..., Any], *arguments: Any, seconds: float = 120.0) -> list[Any]:
    """Results of ``function(rank, *arguments)`` in two processes of one gloo group; an error where one fails or hangs.

    Args:
        function: of a module, not a closure: it is sent by name.
        arguments: values that can be pickled.
        seconds: how long both may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        ranks = [CONTEXT.Process(target=_in_rank, args=(folder, rank, port, function, arguments)) for rank in (0, 1)]
        for process in ranks:
            process.start()
        end = time.monotonic() + seconds
        while any(p.exitcode is None for p in ranks) and time.monotonic() < end:
            if any(p.exitcode for p in ranks):
                break
            time.sleep(0.01)
        codes = [p.exitcode for p in ranks]
        for process in ranks:
            process.kill()
            process.join()
        assert codes == [0, 0], f"exit codes {codes}; None: it hangs, or waits for a rank that failed"
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in (0, 1)]


def join_group(rank: int, world_size: int, port: int) -> None:
    """Make this process a rank, as under ``torchrun``, with one thread."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    init_distributed("cpu")


def _in_rank(folder: str, rank: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    join_group(rank, 2, port)
    result = function(rank, *arguments)
    torch.distributed.destroy_process_group()
    Path(folder, str(rank)).write_bytes(pickle.dumps(result))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
