from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

from hyperion_lite.cli.main import main
from tests.helpers import shared_path
from tests.pth.builders import build_voice, build_voice_training

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "hyperion_lite", "pth"]


@pytest.fixture
def run(capsys):
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["pth", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def trainer(tmp_path) -> Path:
    """A trainer checkpoint: nested state dictionaries, optimizer, odd keys, tied and strided tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    base = torch.arange(12.0).reshape(3, 4)
    content = {
        "epoch": 3,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "odd": {
            "nan": torch.tensor([1.0, float("nan"), float("inf")]),
            7: base,
            "turned": base.T,
            "tied": base,
            "flags": base > 3,
        },
        "history": [{"loss": float("nan")}, (1, None, 2**80)],
        "name": "a model",
    }
    torch.save(content, tmp_path / "trainer.pth")
    return tmp_path / "trainer.pth"


def _strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _shell(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["info"], {"torch", "numpy", "jsonargparse"}),
        (["list"], {"torch", "numpy", "jsonargparse"}),
        (["show", "odd.turned"], {"torch", "jsonargparse"}),
        (["stats"], {"torch", "jsonargparse"}),
        (["verify"], {"torch", "jsonargparse"}),
        (["convert", "OUT"], {"torch", "jsonargparse"}),
    ],
)
def test_no_action_imports_what_it_does_not_need(trainer, tmp_path, arguments, absent):
    action, *rest = [str(tmp_path / "o.npz") if argument == "OUT" else argument for argument in arguments]
    code = (
        "import sys; from hyperion_lite.cli.main import main; "
        f"assert main(['pth', {action!r}, {str(trainer)!r}, *{rest!r}]) == 0; print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not absent & set(json.loads(done.stderr.splitlines()[-1].replace("'", '"')))


def test_importing_the_reader_imports_neither_torch_nor_numpy():
    code = "import sys, hyperion_lite.pth; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_info_describes_the_file(run, trainer):
    code, out, err = run("info", trainer)
    assert (code, err) == (0, "")
    assert "format: zip" in out and "model: OrderedDict of 4, 4 of them tensors" in out and "epoch: 3" in out
    fields = _strict(run("info", trainer, "--json")[1])
    assert fields["num_tensors"] == len(torch.load(trainer)["model"]) + 4 * 3 + 4 and fields["voice_model"] is None
    assert fields["dtypes"]["bool"] == 1 and fields["tied_groups"] == 1


def test_list_shows_layout_and_sharing(run, trainer):
    code, out, _ = run("list", trainer)
    lines = {line.split()[0]: line.split() for line in out.splitlines()}
    assert code == 0 and lines["odd.turned"][1:5] == ["float32", "[4,3]", "[1,4]", "0"]
    assert lines["odd.turned"][6:] == ["3", "tensors"] and lines["model.0.bias"][6] == "-"
    assert "same tensor: odd.7, odd.tied" in out and "optimizer.state.0.exp_avg" in lines
    fields = _strict(run("list", trainer, "--json", "--include", "odd.*", "--exclude", "*.nan")[1])
    assert [row["name"] for row in fields["tensors"]] == ["odd.7", "odd.turned", "odd.tied", "odd.flags"]
    assert fields["shared_storages"] == [["odd.7", "odd.turned", "odd.tied"]] and fields["same_tensors"] == [
        ["odd.7", "odd.tied"]
    ]
    assert fields["tensors"][1]["stride"] == [1, 4] and fields["tensors"][1]["contiguous"] is False


def test_show_prints_the_first_values_in_logical_order(run, trainer):
    code, out, _ = run("show", trainer, "odd.turned", "--values", "5")
    assert code == 0 and out.splitlines()[1] == "0 4 8 1 5 ..."
    fields = _strict(run("show", trainer, "odd.nan", "--json")[1])
    assert fields["values"] == [1.0, "NaN", "Infinity"] and fields["shape"] == [3]
    assert run("show", trainer, "odd.flags", "--values", "2")[1].splitlines()[1] == "False False ..."
    assert len(run("show", trainer, "odd.turned", "--values", "0")[1].splitlines()) == 1
    assert run("show", trainer, "optimizer.state.0.step")[1].splitlines()[1] == "1"


def test_show_prints_other_values_by_name(run, trainer):
    assert run("show", trainer, "epoch")[1] == "epoch: 3\n"
    assert "betas: (0.9, 0.999)" in run("show", trainer, "optimizer.param_groups.0")[1]
    fields = _strict(run("show", trainer, "history", "--json")[1])
    assert fields["value"] == [{"loss": "NaN"}, [1, None, 2**80]]


def test_show_of_an_unknown_name_suggests_a_near_one(run, trainer):
    code, out, err = run("show", trainer, "model.0.wieght")
    assert (code, out) == (2, "") and "model.0.weight" in err and err.count("\n") == 1


def test_stats_count_what_is_not_finite(run, trainer):
    code, out, _ = run("stats", trainer, "--include", "odd.*")
    assert code == 0 and out.splitlines()[-1] == "5 tensors, 1 with NaN or infinity"
    rows = {row["name"]: row for row in _strict(run("stats", trainer, "--json")[1])}
    assert (rows["odd.nan"]["nan"], rows["odd.nan"]["inf"], rows["odd.nan"]["mean"]) == (1, 1, 1.0)
    assert (rows["odd.turned"]["minimum"], rows["odd.turned"]["maximum"], rows["odd.turned"]["mean"]) == (0, 11, 5.5)
    assert rows["odd.turned"]["std"] == pytest.approx(np.arange(12).std())


def test_verify_finds_one_flipped_bit_of_a_storage(run, trainer):
    assert run("verify", trainer)[:2] == (0, "ok: 21 tensors\n")
    content = bytearray(trainer.read_bytes())
    position = content.rindex(np.arange(12, dtype="<f4").tobytes())
    content[position + 5] ^= 1
    trainer.write_bytes(content)
    code, out, err = run("verify", trainer)
    assert (code, out) == (2, "") and err.startswith("hyperion-lite pth: error: ") and "trainer.pth" in err
    assert run("list", trainer)[0] == 0


def test_voice_models_are_described_and_verified(run, tmp_path):
    build_voice(tmp_path / "voice.pth", version=None, extra={"author": "x"})
    out = run("info", tmp_path / "voice.pth")[1]
    assert "  version: 'v1'" in out and "  config.upsample_rates: (10, 10, 2, 2)" in out and "  problems: none" in out
    assert "agree with the voice model's configuration" in run("verify", tmp_path / "voice.pth")[1]
    build_voice(tmp_path / "bad.pth", change={"emb_g.weight": (9, 9)})
    voice = _strict(run("info", tmp_path / "bad.pth", "--json")[1])["voice_model"]
    assert voice["problems"] == ["emb_g.weight: expected [5, 10], found [9, 9]"] and voice["config"]["n_layers"] == 6
    code, _, err = run("verify", tmp_path / "bad.pth")
    assert code == 2 and "emb_g.weight: expected [5, 10], found [9, 9]" in err


def test_a_training_checkpoint_of_the_voice_family_is_described(run, tmp_path):
    build_voice_training(tmp_path / "G.pth")
    code, out, _ = run("info", tmp_path / "G.pth")
    assert code == 0 and "voice model" not in out and "iteration: 7" in out


def test_diff_says_which_tensors_differ_and_how_much(run, tmp_path):
    a = {
        "same": torch.ones(3),
        "moved": torch.zeros(4),
        "cast": torch.ones(2),
        "shape": torch.ones(2),
        "gone": torch.ones(1),
    }
    b = {
        **a,
        "moved": torch.tensor([0.0, 0.5, 0, -0.25]),
        "cast": torch.ones(2).half(),
        "shape": torch.ones(2, 1),
        "new": torch.ones(1),
    }
    del b["gone"]
    torch.save(a, tmp_path / "a.pth")
    torch.save(b, tmp_path / "b.pth")
    code, out, _ = run("diff", tmp_path / "a.pth", tmp_path / "b.pth")
    lines = dict(line.split(": ", 1) for line in out.splitlines()[:-1])
    assert (
        code == 1
        and set(lines) == {"moved", "cast", "shape", "gone", "new"}
        and out.splitlines()[-1] == "5 of 6 tensors differ"
    )
    assert lines["moved"].startswith("2 of 4 values differ, largest difference 0.5 ")
    assert lines["cast"] == "float32 in A, float16 in B; same values" and lines["shape"] == "shape [2] in A, [2,1] in B"
    assert (lines["gone"], lines["new"]) == ("only in A", "only in B")
    fields = _strict(run("diff", tmp_path / "a.pth", tmp_path / "b.pth", "--json", "--include", "moved")[1])
    assert fields["differences"][0]["max_abs"] == 0.5 and fields["compared"] == 1
    assert run("diff", tmp_path / "a.pth", tmp_path / "b.pth", "--include", "moved", "--atol", "0.5")[0] == 0
    assert run("diff", tmp_path / "a.pth", tmp_path / "a.pth")[:2] == (0, "5 tensors, no difference\n")


def test_convert_and_quantize_write_what_was_asked(run, trainer, tmp_path):
    code, out, _ = run("convert", trainer, tmp_path / "m.safetensors", "--prefix", "model", "--dtype", "float16")
    assert code == 0 and "4 tensors" in out
    loaded = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    assert set(loaded) == {"0.weight", "0.bias", "1.weight", "1.bias"} and loaded["0.weight"].dtype == np.float16
    report = _strict(run("convert", trainer, tmp_path / "m.npz", "--include", "odd.*", "--json")[1])
    assert report["tensors"] == 5 and len(np.load(tmp_path / "m.npz").files) == 5
    code, out, _ = run("quantize", trainer, tmp_path / "q.safetensors", "--prefix", "model", "--channel-axis", "1.*=1")
    assert code == 0 and "2 quantised" in out
    assert safetensors.numpy.load_file(tmp_path / "q.safetensors")["1.weight_scale"].shape == (4,)
    assert run("convert", trainer, tmp_path / "o.bin", "--format", "npz")[0] == 0 and np.load(tmp_path / "o.bin").files


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "FILE", "OUT/m.onnx"], "neither safetensors nor npz"),
        (["convert", "FILE", "OUT/m.safetensors", "--include", "nothing.*"], "no tensor name matches 'nothing.*'"),
        (["convert", "FILE", "OUT/no/m.safetensors"], "No such file or directory"),
        (["convert", "FILE", "FILE", "--format", "npz"], "it is the checkpoint that is read"),
        (["convert", "FILE", "OUT/m.npz", "--tied", "once"], "--tied once needs safetensors"),
        (["quantize", "FILE", "OUT/q.npz"], "written to a .safetensors file"),
        (["quantize", "FILE", "OUT/q.safetensors", "--axis", "5"], "there is no channel axis 5"),
        (["list", "FILE", "--include", "x"], "no tensor name matches 'x'"),
        (["diff", "FILE", "OUT/missing.pth"], "missing.pth"),
        (["stats", "OUT"], "a folder"),
        (["list", "OUT/missing.pth"], "No such file"),
    ],
)
def test_requests_that_cannot_be_met_are_one_line_and_leave_nothing(run, trainer, tmp_path, arguments, message):
    before = sorted(os.listdir(tmp_path))
    filled = [argument.replace("FILE", str(trainer)).replace("OUT", str(tmp_path)) for argument in arguments]
    code, out, err = run(*filled)
    assert (code, out) == (2, "") and err.startswith("hyperion-lite pth: error: ") and err.count("\n") == 1
    assert message in err and sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], [], ["show", "x.pth", "n", "--values", "-1"], ["diff", "a", "b", "--atol", "nan"]]
)
def test_wrong_usage_is_exit_code_two(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["pth", *arguments])
    assert caught.value.code == 2 and "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!DOCTYPE html><html>404</html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "LFS"),
        (b"", "empty"),
    ],
)
def test_other_files_are_named_for_what_they_are(run, tmp_path, content, message):
    (tmp_path / "m.pth").write_bytes(content)
    code, _, err = run("info", tmp_path / "m.pth")
    assert code == 2 and message in err and err.count("\n") == 1


def test_a_torchscript_archive_is_read_on_request(run):
    path = shared_path("fixtures/pth_real/silero_vad__data__silero_vad.jit")
    code, _, err = run("list", path)
    assert code == 2 and "TorchScript" in err and "--allow-torchscript" in err
    assert run("list", path, "--allow-torchscript")[0] == 0


def test_a_hostile_name_cannot_write_to_the_terminal(run, tmp_path):
    content = {"a\x1b[2Jb\nc\u202ed": torch.ones(1), "text\r": "\x1b]0;title\x07", "x\ud800": torch.ones(1)}
    torch.save(content, tmp_path / "m.pth")
    for action in ("info", "list", "stats", "verify"):
        code, out, err = run(action, tmp_path / "m.pth")
        assert code == 0 and err == "" and not set("\x1b\r\x07\u202e\ud800") & set(out)
    assert len(run("list", tmp_path / "m.pth")[1].splitlines()) == 4
    _strict(run("list", tmp_path / "m.pth", "--json")[1])
    assert "\x1b" not in run("show", tmp_path / "m.pth", "missing\x1b")[2]


def test_names_that_the_terminal_lacks_are_escaped(tmp_path):
    torch.save({"größe": torch.ones(1)}, tmp_path / "m.pth")
    done = _shell("list", tmp_path / "m.pth", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "gr\\xf6\\xdfe" in done.stdout


def test_cycles_and_unfolding_aliases_end(run, tmp_path):
    bomb: list[Any] = [1]
    for _ in range(60):
        bomb = [bomb, bomb]
    loop: dict[str, Any] = {"bomb": bomb, "w": torch.ones(1), "digits": 10**5000}
    loop["self"] = loop
    torch.save(loop, tmp_path / "m.pth")
    for arguments in (["info"], ["list"], ["show", "bomb"], ["show", "self.self.digits"], ["info", "--json"]):
        action, *rest = arguments
        code, out, _ = run(action, tmp_path / "m.pth", *rest)
        assert code == 0 and len(out) < 20_000
    assert _strict(run("show", tmp_path / "m.pth", "self.digits", "--json")[1])["value"].startswith("<integer of")


def test_a_file_without_tensors_is_no_error(run, tmp_path):
    torch.save({"epoch": 1}, tmp_path / "m.pth")
    for action in ("info", "list", "stats", "verify"):
        assert run(action, tmp_path / "m.pth")[0] == 0
    assert run("diff", tmp_path / "m.pth", tmp_path / "m.pth")[0] == 0


def test_a_whole_tensor_as_the_file_is_listed(run, tmp_path):
    torch.save(torch.ones(2, 3), tmp_path / "m.pth")
    code, out, _ = run("list", tmp_path / "m.pth")
    assert code == 0 and out.splitlines()[1].split()[:2] == ["tensor", "float32"]
    assert run("show", tmp_path / "m.pth", "tensor", "--values", "1")[1].splitlines()[1] == "1 ..."


def test_a_giant_of_one_element_is_described_and_shown_without_being_made(run, tmp_path):
    torch.save({"giant": torch.ones(1).expand(1 << 40)}, tmp_path / "m.pth")
    assert run("list", tmp_path / "m.pth")[0] == 0
    assert run("show", tmp_path / "m.pth", "giant", "--values", "2")[1].splitlines()[1] == "1 1 ..."
    code, _, err = run("stats", tmp_path / "m.pth")
    assert code == 2 and err.count("\n") == 1
    assert run("convert", tmp_path / "m.pth", tmp_path / "m.npz")[0] == 2 and os.listdir(tmp_path) == ["m.pth"]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_type_can_be_shown_and_counted(run, tmp_path):
    names = ["float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex32"]
    names += ["int64", "uint8", "uint16", "uint64", "bool"]
    torch.save(OrderedDict((name, torch.ones(3).to(getattr(torch, name))) for name in names), tmp_path / "m.pth")
    assert run("stats", tmp_path / "m.pth")[0] == 0
    for name in names:
        code, out, err = run("show", tmp_path / "m.pth", name)
        assert code == 0, err
        assert out.splitlines()[1].split()[0] in ("1", "True", "(1+0j)")
        assert len(_strict(run("show", tmp_path / "m.pth", name, "--json")[1])["values"]) == 3


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    torch.save({f"layer.{number}.weight": torch.zeros(1) for number in range(5000)}, tmp_path / "m.pth")
    process = subprocess.Popen(
        [*COMMAND, "list", str(tmp_path / "m.pth")], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""
    process.stderr.close()


_SLOW_WRITE = """
import sys, time
import hyperion_lite.pth.convert as convert
stored = convert._silent
def slow(writer):
    def write(path, tensors, metadata, progress):
        path.write_bytes(b"half")
        print("writing", flush=True)
        time.sleep(60)
    return write
convert.write_safetensors = slow(convert.write_safetensors)
from hyperion_lite.cli.main import main
sys.exit(main(["pth", "convert", sys.argv[1], sys.argv[2]]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_conversion_leaves_nothing(trainer, tmp_path, number):
    command = [sys.executable, "-c", _SLOW_WRITE, str(trainer), str(tmp_path / "m.safetensors")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    time.sleep(0.05)
    assert len(os.listdir(tmp_path)) == 2
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in err
    assert os.listdir(tmp_path) == ["trainer.pth"]


def _fixture_cases() -> list[str]:
    try:
        folder = shared_path("fixtures/pth")
    except pytest.skip.Exception:
        return []
    return sorted(json.loads((folder / "expected.json").read_text()))


@pytest.mark.parametrize("case", _fixture_cases())
def test_hostile_files_end_in_a_listing_or_one_line(run, case):
    folder = shared_path("fixtures/pth")
    expected = json.loads((folder / "expected.json").read_text())[case]["expect"]
    for action in ("info", "list", "verify", "stats"):
        code, out, err = run(action, folder / case)
        assert code in (0, 2) and (code == 0) == (err == "") and err.count("\n") == (code == 2)
        assert expected != "open" or code == 0, err
        assert "Traceback" not in err and len(out) < 100_000
    assert expected != "refuse" or run("verify", folder / case)[0] == 2
