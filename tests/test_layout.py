"""The direction of imports, the public names, and what importing costs."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hyperion_lite

ROOT = Path(hyperion_lite.__file__).parent

MAY_IMPORT = {
    "core": set(),
    "pth": set(),
    "serialization": {"core", "pth"},
    "layers": {"core"},
    "layer_blocks": {"core", "layers"},
    "narchs": {"core", "layers", "layer_blocks"},
    "tpm": {"core", "layers", "layer_blocks", "narchs", "serialization", "pth"},
    "models": {"core", "pth", "layers", "layer_blocks", "narchs", "serialization", "tpm"},
    "data": {"core"},
    "metrics": {"core"},
    "loggers": {"core"},
    "optim": {"core"},
    "lr_schedulers": {"core"},
    "wd_schedulers": {"core"},
}
OWN_LEVEL = {"extraction", "trainers", "cli"}
NO_LIMIT = MAY_IMPORT.keys() | OWN_LEVEL


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "hyperion_lite" else [f"hyperion_lite.{a.name}" for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: relative import")
        found |= {name.split(".")[1] for name in names if name.startswith("hyperion_lite.")}
    return found & NO_LIMIT


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_in_one_direction(package):
    for path in (ROOT / package).rglob("*.py"):
        wrong = imported_packages(path) - MAY_IMPORT[package] - {package}
        assert not wrong, f"{path.relative_to(ROOT)} must not import {wrong}"


def test_nobody_imports_the_command_line():
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] not in ("cli", "__main__.py"):
            assert "cli" not in imported_packages(path), path


@pytest.mark.parametrize("name", sorted(hyperion_lite._PUBLIC))
def test_public_names_are_where_they_are_promised(name):
    assert getattr(hyperion_lite, name).__name__ == name


@pytest.mark.parametrize(
    "name",
    [
        "models.HyperTorchModel",
        "models.wav2xvectors.Wav2XVector",
        "narchs.NetArch",
        "data.AudioDataset",
        "data.LegacyAudioDataset",
        "data.HyperSampler",
        "data.SegSampler",
        "data.SegSamplerFactory",
        "trainers.TorchTrainerBase",
        "trainers.XVectorTrainer",
        "optim.OptimizerFactory",
        "lr_schedulers.LRSchedulerFactory",
        "wd_schedulers.WDSchedulerFactory",
        "layers.AudioFeatsFactory",
        "layers.GlobalPool1dFactory",
    ],
)
def test_packages_offer_their_main_names(name):
    package, _, attribute = name.rpartition(".")
    module = importlib.import_module(f"hyperion_lite.{package}")
    assert getattr(module, attribute).__name__ == attribute
    assert attribute in dir(module)
    with pytest.raises(AttributeError, match="NoSuchName"):
        module.NoSuchName


def in_fresh_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_the_package_or_the_reader_brings_no_torch():
    code = "import sys, hyperion_lite, hyperion_lite.pth; print([m for m in ('torch', 'jsonargparse', 'transformers') if m in sys.modules])"
    assert in_fresh_process(code).strip() == "[]"
