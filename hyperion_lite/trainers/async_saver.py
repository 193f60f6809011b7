"""Writes checkpoints in a thread, one at a time and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable


class AsyncSaver:
    """Runs one write at a time in the background. The next one waits for the one before."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, write: Callable[[], object]) -> None:
        """Start ``write``, after the one before has ended.

        Raises:
            Exception: what the write before raised.
        """
        self.wait()
        # not a daemon: a process that ends waits for the file
        self._thread = threading.Thread(target=self._run, args=(write,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written.

        Raises:
            Exception: what the last write raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001  an exception of a thread is raised where somebody can see it
            self._error = error
