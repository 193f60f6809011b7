"""Options of commands: one in either spelling, none by a prefix, unknown ones with the nearest known."""

from __future__ import annotations

import pytest

from hyperion_lite.cli.command_parser import CommandParser


def make() -> CommandParser:
    parser = CommandParser(prog="tool")
    actions = parser.add_subparsers(dest="action", required=True)
    sub = actions.add_parser("do")
    sub.add_argument("file", nargs="*")
    sub.add_argument("--dry-run", action="store_true")
    sub.add_argument("--num_items", type=int, default=1)
    sub.add_argument("--output", required=True)
    return parser


@pytest.mark.parametrize("items", ["--num-items", "--num_items"])
@pytest.mark.parametrize("dry", ["--dry-run", "--dry_run"])
@pytest.mark.parametrize("joined", [True, False])
def test_both_spellings_are_one_option(items: str, dry: str, joined: bool) -> None:
    count = [f"{items}=-3"] if joined else [items, "-3"]
    args = make().parse_args(["do", "a_b", dry, "--output=x_y", *count])
    assert (args.file, args.dry_run, args.num_items, args.output) == (["a_b"], True, -3, "x_y")


def test_behind_two_dashes_nothing_is_an_option() -> None:
    args = make().parse_args(["do", "--output", "o", "--", "--dry_run", "--other"])
    assert args.file == ["--dry_run", "--other"] and not args.dry_run


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--ouput", "o"], "unknown option --ouput, did you mean '--output'?"),
        (["--num_itms=3"], "unknown option --num_itms, did you mean '--num_items'?"),
        (["--out", "o"], "unknown option --out"),
        (["--zzz"], "unknown option --zzz\n"),
        ([], "required: --output"),
    ],
)
def test_mistakes(wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        make().parse_args(["do", *wrong])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
