"""The command line's parser, made of `commands.toml`, which says what stands in it."""

from __future__ import annotations

import argparse
import builtins
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

Table = Mapping[str, Any]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, as of every other mistake: the usage is in `--help`."""
        self.exit(2, f"error: {message.removesuffix('.')} (see {self.prog} --help).\n")


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line's parser.

    Args:
        only: the one command to be parsed. The others are listed without their options, and their
            modules are not imported.
    """
    root = _Parser(
        prog="python -m engine",
        description="Attune: is the kernel right, what does it occupy, how fast is it.",
        allow_abbrev=False,
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in _read()["commands"].items():
        p = _add_parser(commands, name, command)
        if only in (None, name):
            _fill(p, command, _module_of(command))
    return root


@cache
def _read() -> Table:
    path = Path(__file__).with_name("commands.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _add_parser(commands: Any, name: str, command: Table) -> argparse.ArgumentParser:
    texts = {key: command[key] for key in ("help", "description", "epilog") if key in command}
    p: argparse.ArgumentParser = commands.add_parser(name, **texts)
    return p


def _module_of(command: Table) -> ModuleType:
    return import_module(f"engine.cli.{command['run'].partition('.')[0]}")


def _fill(p: argparse.ArgumentParser, command: Table, module: ModuleType) -> None:
    if "run" in command:
        p.set_defaults(run=getattr(module, command["run"].partition(".")[2] or "run"))
    _add_options(p, command["options"], module)
    for title, group in command.get("groups", {}).items():
        named = {name: option for name, option in group.items() if name != "description"}
        _add_options(p.add_argument_group(title, group.get("description")), named, module)
    if "actions" in command:
        actions = p.add_subparsers(dest="action", metavar="action")
        for name, action in command["actions"].items():
            _fill(_add_parser(actions, name, action), action, module)


def _add_options(
    p: argparse._ActionsContainer, named: Table, module: ModuleType, **given: Any
) -> None:
    exclusive: dict[str, argparse._ActionsContainer] = {}
    for name, option in named.items():
        if name.startswith("@"):
            _add_options(p, _read()["shared"][name[1:]], module, **(given | option))
            continue
        keywords: dict[str, Any] = {"flag": True, "help": option}
        if not isinstance(option, str):
            keywords = option | given
        place = p
        if "exclusive" in keywords:
            group = keywords["exclusive"]
            place = exclusive[group] = exclusive.get(group) or p.add_mutually_exclusive_group()
        place.add_argument(*name.split(", "), **_keywords(keywords, module))


def _keywords(keywords: Table, module: ModuleType) -> dict[str, Any]:
    """What `add_argument` takes, with names replaced by what they name."""
    own = ("flag", "exclusive", "inherits")
    given = {key: value for key, value in keywords.items() if key not in own}
    if "flag" in keywords:
        given["action"] = "store_true"
    if "inherits" in keywords:
        given["default"] = argparse.SUPPRESS
    if given.get("action") == "boolean":
        given["action"] = argparse.BooleanOptionalAction
    if "type" in given:
        given["type"] = _named(given["type"], module)
    if isinstance(given.get("choices"), str):
        given["choices"] = tuple(_named(given["choices"], module))
    if isinstance(given.get("metavar"), list):
        given["metavar"] = tuple(given["metavar"])
    if "{INPUT_KINDS}" in given.get("help", ""):
        meanings = import_module("engine.input_kinds").MEANINGS
        kinds = "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items())
        given["help"] = given["help"].format(INPUT_KINDS=kinds)
    return given


def _named(name: str, module: ModuleType) -> Any:
    options = import_module("engine.cli.options")  # it takes time that `--help` has no need of
    return next(getattr(m, name) for m in (module, options, builtins) if hasattr(m, name))
