"""Import of optional dependencies, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from hyperion_lite.core.errors import MissingDependencyError


def require(module: str, extra: str | None = None, purpose: str | None = None) -> ModuleType:
    """Import ``module`` or explain how to install it.

    Args:
        module: dotted module name.
        extra: the extra of ``hyperion-lite`` that brings it; ``None`` for a base dependency.
        purpose: what it is needed for, for the message.

    Raises:
        MissingDependencyError: the module is absent, or present but broken. A torchaudio whose compiled part does not match
            torch raises ``OSError`` at import; that is reported as broken, not as absent.
    """
    what = f" (needed for {purpose})" if purpose else ""
    install = f'pip install "hyperion-lite[{extra}]"' if extra else "pip install --force-reinstall hyperion-lite"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise MissingDependencyError(
                f"{module}{what} is installed, but its own dependency {error.name!r} is not. Run: {install}"
            ) from error
        raise MissingDependencyError(f"{module}{what} is not installed. Run: {install}") from error
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingDependencyError(
            f"{module}{what} is installed but cannot be imported: {error}. Its compiled part probably does not match the "
            f"installed torch; install matching versions of torch and {module.split('.')[0]}."
        ) from error
