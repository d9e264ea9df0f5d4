"""Tests of how the demo's programs end after an error and after an interrupt."""

import pytest

import cml_engine as cml
from cml_engine.demo_game.exit_codes import exit_code_of


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (cml.InputError("no such planet"), 2, "error: no such planet\n"),
        (OSError("the disk is full"), 2, "error: the disk is full\n"),
        (KeyboardInterrupt("3 tiles are stored"), 130, "interrupted. 3 tiles are stored\n"),
    ],
)
def test_an_error_is_a_message_and_an_exit_code(error, code, message, capsys):
    def run():
        raise error

    assert exit_code_of(run) == code
    assert capsys.readouterr().err == message


def test_other_errors_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        exit_code_of(lambda: 1 // 0)
