"""The command line's parser, built from `commands.toml`, which documents its own format."""

from __future__ import annotations

import argparse
import builtins
import re
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, get_type_hints

from engine.base.errors import BadInput

Table = Mapping[str, Any]

_NO_CHOICE = re.compile(r"argument (.+?): invalid choice: '(.*?)' \(choose from (.+)\)", re.DOTALL)


_AS_MODULE = ("engine", "__main__.py")  # how `python -m engine` is started


class BadUsage(BadInput):
    """Arguments that no command accepts."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise one sentence, as for other mistakes; `--help` prints the usage.

        Raises:
            BadUsage: always.
        """
        if (match := _NO_CHOICE.fullmatch(message)) is not None:
            what, given, choices = match.groups()
            known = [choice.strip().strip("'") for choice in choices.split(",")]
            kind = what if what in ("command", "action") else f"value of {what}"
            message = _no_such(kind, given, known)
        raise BadUsage(f"{message.removesuffix('.')} (see {self.prog} --help).")


class _Root(_Parser):
    """The parser of all commands; its help lists them by group."""

    commands: Mapping[str, argparse.ArgumentParser]

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base class does; arguments for another program are stored in `passed_on`.

        Raises:
            BadUsage: an option or argument that the command does not accept.
        """
        given = sys.argv[1:] if args is None else args
        if given and given[0].startswith("--") and given[0] not in _OF_ROOT:
            name = given[0].partition("=")[0]
            if get_close_matches(name, _OF_ROOT, cutoff=0.75):
                self.error(_no_such("option", name, _OF_ROOT))
            self.error(f"{name} comes before the command: put options after it")
        parsed, rest = self.parse_known_args(args, namespace)
        command = _read()["commands"][parsed.command]
        if "passes_on" in command:
            parsed.passed_on = rest
        elif rest:
            self._refuse(parsed.command, rest)
        return parsed

    def _refuse(self, command: str, rest: Sequence[str]) -> NoReturn:
        """Raise an error that suggests the nearest options for an unknown one."""
        p = self.commands[command]
        options = [word for word in rest if word.startswith("-")]
        if not options:
            p.error(f"unrecognized arguments: {' '.join(rest)}")
        known = dict.fromkeys(re.findall(r"--[\w-]+", p.format_help()))
        name = options[0].partition("=")[0]
        meant = _SIZES.get(name.lstrip("-"))
        if meant in known:
            p.error(f"There is no option called {name!r}: did you mean {meant}?")
        p.error(_no_such("option", name, known))


_OF_ROOT = ("--help", "--version")

# Names of a problem's sizes as on the pages and in papers.
_SIZES = {
    "B": "--batch",
    "H": "--heads",
    "HKV": "--heads-kv",
    "S": "--seqlen",
    "KV": "--seqlen-kv",
    "D": "--head-dim",
    "DV": "--head-dim-v",
}


class _Version(argparse.Action):
    """`--version`, which is looked up only when requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from engine.base.files import version

        print(f"attune {version()}")
        parser.exit()


def _no_such(kind: str, given: str, known: Iterable[str]) -> str:
    from engine.base.errors import unknown  # it takes time that `--help` has no need of

    return str(unknown(kind, given, known))


def parser(only: str | None = None) -> _Root:
    """Return the parser of the command line.

    Args:
        only: the command to parse. Others are listed without their options, and their modules are
            not imported.
    """
    root = _Root(
        prog="python -m engine" if Path(sys.argv[0]).parts[-2:] == _AS_MODULE else "attune",
        usage="%(prog)s [--help] [--version] command …",
        description="Attune: correctness, occupancy and speed of CUDA attention kernels.",
        epilog=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = root.add_subparsers(
        prog=root.prog,
        dest="command",
        required=True,
        metavar="command",
        help=argparse.SUPPRESS,
        parser_class=_Parser,
    )
    for name, command in _read()["commands"].items():
        p = _add_parser(commands, name, command)
        if only in (None, name):
            _fill(p, command, _module_of(command))
    root.commands = commands.choices
    return root


def options_of(parsed: argparse.Namespace) -> Any:
    """Return the parsed options as the dataclass that the command's function takes (its `args`)."""
    kind = get_type_hints(parsed.run)["args"]
    return kind(**{field.name: getattr(parsed, field.name) for field in fields(kind)})


def _overview() -> str:
    """Return the commands by group, as wide as the terminal."""
    read = _read()
    width = min(shutil.get_terminal_size().columns, _MAX_COLUMNS)
    indent = 4 + max(map(len, read["commands"]))
    lines = []
    for title, names in read["groups"].items():
        lines += ["", f"{title}:"]
        for name in names:
            first = f"  {name}".ljust(indent)
            text = read["commands"][name]["help"]
            lines += textwrap.wrap(
                text, width, initial_indent=first, subsequent_indent=" " * indent
            )
    return "\n".join(lines[1:])


_MAX_COLUMNS = 110  # of prose


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
    """Return keywords for `add_argument`, with names resolved to objects."""
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
        meanings = import_module("engine.attention.tensors").MEANINGS
        kinds = "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items())
        given["help"] = given["help"].format(INPUT_KINDS=kinds)
    return given


def _named(name: str, module: ModuleType) -> Any:
    options = import_module("engine.cli.options")  # it takes time that `--help` has no need of
    return next(getattr(m, name) for m in (module, options, builtins) if hasattr(m, name))
