"""Every command's help can be shown."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from sparsefleet.cli.app import app


def commands(group: typer.core.TyperGroup, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, command in group.commands.items():
        inner = (*path, name)
        found += commands(command, inner) if isinstance(command, typer.core.TyperGroup) else [inner]
    return found


@pytest.mark.parametrize("path", commands(typer.main.get_command(app)), ids=" ".join)
def test_help(path):
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=200)
    assert shown.exit_code == 0, shown.output
    assert "Usage:" in shown.output


def test_the_form_of_a_redis_address_is_shown_whole():
    shown = CliRunner().invoke(app, ["publish", "--help"], terminal_width=200, env={"COLUMNS": "200"})
    assert "redis://[user:password@]host[:port][/database]" in shown.output


def test_wherever_a_schema_is_taken_the_help_says_that_it_may_be_toml():
    found = 0
    for path in commands(typer.main.get_command(app)):
        command = typer.main.get_command(app)
        for name in path:
            command = command.commands[name]
        for option in command.params:
            if "--schema" in option.opts:
                found += 1
                assert "JSON or TOML" in option.help, path
    assert found >= 3
