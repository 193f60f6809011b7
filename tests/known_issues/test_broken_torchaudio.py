"""A torchaudio whose compiled part does not match torch raises OSError at import. Native models must not care."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import soundfile as sf

from hyperion_lite.core.errors import MissingDependencyError
from hyperion_lite.core.extras import require
from hyperion_lite.data.synthetic_voices import make_voice, synthesise
from hyperion_lite.extraction.embedding_files import read_embeddings
from tests.models.small_models import build

BROKEN = 'raise OSError("libtorch_cuda.so: cannot open shared object file")\n'
MISSING = 'raise ModuleNotFoundError("No module named " + __name__, name=__name__)\n'


@pytest.mark.parametrize("stub", [BROKEN, MISSING], ids=["broken", "missing"])
def test_native_models_load_and_extract(tmp_path, stub):
    for name in ("torchaudio", "transformers"):
        (tmp_path / "stubs" / name).mkdir(parents=True)
        (tmp_path / "stubs" / name / "__init__.py").write_text(stub)
    (tmp_path / "wavs").mkdir()
    sf.write(tmp_path / "wavs" / "a.wav", synthesise(make_voice(0), 0.5, 8000), 8000)
    build("wav2-ecapa").save(tmp_path / "m.pth")
    command = [
        sys.executable,
        "-m",
        "hyperion_lite",
        "extract",
        "--model",
        "m.pth",
        "--input",
        "wavs",
        "--output",
        "o.npz",
    ]
    path = os.pathsep.join([str(tmp_path / "stubs"), *(p for p in sys.path if p)])
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert read_embeddings(tmp_path / "o.npz").vectors.shape == (1, 12)


def test_a_broken_dependency_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_audio").mkdir()
    (tmp_path / "broken_audio" / "__init__.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match="installed but cannot be imported: libtorch_cuda"):
        require("broken_audio")
    with pytest.raises(MissingDependencyError, match=r'is not installed. Run: pip install "hyperion-lite\[lora\]"'):
        require("no_such_module", "lora")
