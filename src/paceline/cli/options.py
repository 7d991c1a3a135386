"""Options from dataclasses: command-line flags over a configuration file over defaults.

Owns: reading TOML and YAML, matching their entries to fields, parsing flags.
Invariant: a value that was given takes effect or is refused; no entry is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tyro
import yaml

from paceline.base.errors import OptionError, nearest

T = TypeVar("T")


def read_config(path: str) -> dict[str, Any]:
    """The entries of a TOML or YAML file; dashes in names become underscores.

    Raises: OptionError: no such file, another ending, bad syntax, or no table of entries at the top.
    """
    file = Path(path)
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise OptionError(
            what=f"configuration file {path!r} ends in neither .toml, .yaml nor .yml",
            why="the ending says how to read it",
            fix="rename the file",
        )
    try:
        text = file.read_text(encoding="utf-8")
        content = tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise OptionError(
            what=f"cannot read the configuration file {path!r}: {error.strerror}",
            why="the run would go on with other options than you wrote",
            fix="check the path of --config",
        ) from error
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise OptionError(
            what=f"{path}: {' '.join(str(error).split())}",
            why="the run would go on with other options than you wrote",
            fix="correct the syntax there",
        ) from error
    if not isinstance(content, dict):
        raise OptionError(
            what=f"{path} holds no entries such as batch = 256" if content is None else f"{path} holds no table",
            why="every entry is the name of an option and its value",
            fix="write one entry a line",
        )
    return {str(key).replace("-", "_"): value for key, value in content.items()}


def apply_config(entries: Mapping[str, Any], path: str, *, defaults: Sequence[Any]) -> list[Any]:
    """The dataclass instances with the entries of a file in place of their defaults.

    Args:
      entries: from `read_config`.
      path: of the file, for errors.
      defaults: instances whose fields together are the known options.
    Raises: OptionError: an entry that no field has, or a value of another type.
    """
    known = {field.name for default in defaults for field in dataclasses.fields(default)}
    for name in entries:
        if name not in known:
            raise OptionError(
                what=f"{path}: unknown option {name!r}{nearest(name, known)}",
                why="it would have no effect",
                fix="correct or remove the entry; --help lists the options",
            )
    return [_replace(default, entries, path) for default in defaults]


def _replace(default: T, entries: Mapping[str, Any], path: str) -> T:
    names = [field.name for field in dataclasses.fields(default)]  # pyright: ignore[reportArgumentType]: T is a dataclass
    chosen = {name: _as_list(entries[name], default, name) for name in names if name in entries}
    values = {name: getattr(default, name) for name in names} | chosen
    try:
        return msgspec.convert(values, type=type(default))
    except msgspec.ValidationError as error:
        raise OptionError(
            what=f"{path}: {error}".replace("`$.", "`"),
            why="the option takes another type",
            fix="correct the value; --help shows the types",
        ) from error


def _as_list(entry: Any, default: Any, name: str) -> Any:
    """One string where an option takes several, as on the command line."""
    takes_several = typing.get_type_hints(type(default))[name] == tuple[str, ...]
    return [entry] if takes_several and isinstance(entry, str) else entry


def check_flags(arguments: Sequence[str], *, groups: Mapping[str, Any]) -> None:
    """Raise OptionError for a flag that no field has."""
    known = {name.replace("_", "-") for default in groups.values() for name in _field_names(default)} | {"help"}
    known |= {f"no-{name}" for name in known}
    for argument in arguments:
        name = argument[2:].partition("=")[0].replace("_", "-")
        if argument.startswith("--") and name not in known:
            raise OptionError(
                what=f"unknown option --{name}{nearest(name, known)}",
                why="it would have no effect",
                fix="correct or remove it; --help lists the options",
            )


def _field_names(options: Any) -> Iterator[str]:
    """Fields that become flags; those of a nested dataclass do so without a prefix."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            yield from _field_names(value)
        else:
            yield field.name


def parse(arguments: Sequence[str], *, program: str, description: str, groups: Mapping[str, Any]) -> dict[str, Any]:
    """Parse flags for several dataclasses at once, as if they were one.

    Args:
      groups: heading in the help text to the instance that holds the defaults.
    Returns: heading to the instance with the flags applied.

    Raises: OptionError: an option that there is not, or a value of another type. SystemExit: --help.
    """
    check_flags(arguments, groups=groups)
    fields = [(name, type(default), dataclasses.field(default=default)) for name, default in groups.items()]
    combined = dataclasses.make_dataclass("Options", fields, frozen=True)
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            parsed = tyro.cli(
                combined,
                prog=program,
                description=description,
                args=list(arguments),
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise _parse_error(told.getvalue(), program) from None
    return {name: getattr(parsed, name) for name in groups}


def _parse_error(told: str, program: str) -> OptionError:
    """tyro's message without its frame: the sentence before the list of types that it tried."""
    lines = [line.strip("│╭╮╰╯─ ") for line in told.splitlines()]
    sentence = " ".join(itertools.takewhile(bool, lines[1:])).strip()
    return OptionError(
        what=sentence or "the options cannot be read",
        why="the command would do something other than you meant",
        fix=f"correct it; {program} --help shows the type of each option",
    )


def find_value(arguments: Sequence[str], name: str) -> str | None:
    """The value of ``--name VALUE`` or ``--name=VALUE`` before the flags are parsed; the last one counts."""
    found = None
    for number, argument in enumerate(arguments):
        if argument == f"--{name}" and number + 1 < len(arguments):
            found = arguments[number + 1]
        elif argument.startswith(f"--{name}="):
            found = argument.partition("=")[2]
    return found


def with_value(arguments: list[str], name: str, *, alone: str) -> list[str]:
    """The arguments with a value behind ``--name`` where it stands alone."""
    full: list[str] = []
    for number, argument in enumerate(arguments):
        full.append(argument)
        is_alone = number + 1 == len(arguments) or arguments[number + 1].startswith("--")
        if argument == f"--{name}" and is_alone:
            full.append(alone)
    return full


def early_value(arguments: list[str], name: str) -> str | None:
    """What a flag, or else the configuration file, says of an option that is needed before the flags are parsed.

    Args:
      name: of the option, with underscores; its flag has dashes.
    """
    value, config = find_value(arguments, name.replace("_", "-")), find_value(arguments, "config")
    if value is None and config is not None:
        entry = read_config(config).get(name)
        value = None if entry is None else str(entry)
    return value
