"""One mixin that makes a class configurable: record, check, rebuild, expose on a command line.

A configuration is a plain JSON document: the constructor arguments of a class, nested for its parts. The document that
:meth:`Configurable.get_config` returns, the one a model file holds and the one a user writes in YAML are the same, and
``cls(**config)`` rebuilds the object.
"""

from __future__ import annotations

import copy
import difflib
import enum
import inspect
import logging
import os
import typing
from abc import ABCMeta
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from hyperion_lite.core.errors import ConfigError

if TYPE_CHECKING:
    import jsonargparse

logger = logging.getLogger(__name__)

OnUnknown = Literal["error", "warn"]
_T = TypeVar("_T", bound="Configurable")

REQUIRED = inspect.Parameter.empty
"""Default of a field that has none."""


@dataclass(frozen=True)
class ConfigField:
    """One configuration key: a constructor argument.

    Attributes:
        name: the key.
        annotation: resolved type.
        default: default value, or :data:`REQUIRED`.
        help: description from the docstring.
    """

    name: str
    annotation: Any
    default: Any
    help: str


def nearest(name: str, known: Iterable[str]) -> str:
    """``", did you mean 'x'?"`` for the known name closest to ``name``, or an empty string."""
    matches = difflib.get_close_matches(name, [str(k) for k in known], n=1, cutoff=0.6)
    return f", did you mean {matches[0]!r}?" if matches else ""


def unknown_choice(kind: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is none of the ``known`` ones of its ``kind``."""
    names = [str(k) for k in known]
    return f"unknown {kind} {name!r}{nearest(str(name), names)} (known: {', '.join(names)})"


def to_plain(value: Any, where: str = "config") -> Any:
    """Deep copy of ``value`` with JSON types only.

    Tuples become lists, enums their value, paths strings, numpy scalars Python numbers, configurable objects their configuration.

    Raises:
        ConfigError: a value has no plain form; the message says where.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Configurable):
        return value.get_config()
    if isinstance(value, enum.Enum):
        return to_plain(value.value, where)
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [to_plain(v, f"{where}[{i}]") for i, v in enumerate(items)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return to_plain(value.item(), where)
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    if hasattr(value, "__dict__") and type(value).__name__ == "Namespace":
        return to_plain(vars(value), where)
    raise ConfigError(f"{where} holds a {type(value).__name__}, which has no plain (JSON) form")


class ConfigurableMeta(ABCMeta):
    """Records the constructor arguments, and accepts the ``class_name`` that a configuration carries."""

    @property
    def __signature__(cls) -> inspect.Signature:
        parameters = list(inspect.signature(cls.__init__).parameters.values())  # type: ignore[misc]
        return inspect.Signature(parameters[1:])

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "class_name" in kwargs and not _has_own_class_name(cls):
            class_name = kwargs.pop("class_name")
            if class_name is not None and class_name != cls.__name__:
                raise ConfigError(f"a configuration of class {class_name!r} was given to {cls.__name__}")
        obj = super().__call__(*args, **kwargs)
        if "_recorded_config" not in vars(obj):
            object.__setattr__(obj, "_recorded_config", _bind(cls, args, kwargs))
            pending = vars(obj).pop("_pending_config", None)
            if pending:
                vars(obj)["_recorded_config"].update(pending)
        return obj


def _has_own_class_name(cls: type) -> bool:
    # a class can have an option of that name (the column of the class, in samplers), which then says nothing about which class it is
    return "class_name" in config_fields(cls)


def _bind(cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    bound = signature.bind(None, *args, **kwargs)
    bound.apply_defaults()
    recorded = dict(list(bound.arguments.items())[1:])
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            recorded.update(recorded.pop(parameter.name, {}))
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            recorded.pop(parameter.name, None)
    for field in config_fields(cls).values():
        if field.name not in recorded and field.default is not REQUIRED:
            recorded[field.name] = field.default
    return {key: _record(value) for key, value in recorded.items() if key in config_fields(cls)}


def _record(value: Any) -> Any:
    # Objects are kept: their configuration is asked for when it is needed, because it can change, and some (an optimizer, a logger with
    # its file) must not be copied.
    return copy.deepcopy(value) if isinstance(value, (dict, list, tuple, set)) else value


class Configurable(metaclass=ConfigurableMeta):
    """Mixin of every class that is built from a configuration. It goes before ``nn.Module`` in the bases.

    Class attributes:
        config_method: the method whose signature is the configuration; ``"create"`` for factories.
        nested_configs: argument name -> configurable class of that part, for checking and for the command line.
        config_exclude: arguments that are not part of the configuration (a parent's argument that the subclass supplies).
        own_config_keys: keys that the original toolkit does not know; single-file model saves keep them apart.
    """

    config_method: ClassVar[str] = "__init__"
    nested_configs: ClassVar[Mapping[str, type[Configurable]]] = {}
    config_exclude: ClassVar[Collection[str]] = ()
    own_config_keys: ClassVar[Collection[str]] = ()

    def get_config(self) -> dict[str, Any]:
        """The configuration as plain JSON types; a copy, the caller may change it."""
        recorded = vars(self).get("_recorded_config", {})
        return {key: to_plain(value, key) for key, value in recorded.items()}

    def _update_config(self, **changes: Any) -> None:
        """Record that constructor arguments have changed after construction (or were resolved in it)."""
        target = vars(self).get("_recorded_config")
        if target is None:
            target = vars(self).setdefault("_pending_config", {})
        target.update(changes)

    @classmethod
    def from_config(cls: type[_T], config: Mapping[str, Any], on_unknown: OnUnknown = "error", **extra: Any) -> _T:
        """Check ``config`` and build the object.

        Args:
            config: constructor arguments as plain types; ``class_name`` may be present.
            on_unknown: ``"error"`` for what a user wrote, ``"warn"`` (one warning, keys dropped) for model files.
            extra: arguments that are not part of the configuration.

        Raises:
            ConfigError: unknown, missing or ill-typed keys.
        """
        return cls(**check_config(cls, config, on_unknown), **extra)

    @classmethod
    def nested_class(cls, key: str, value: Mapping[str, Any]) -> type[Configurable] | None:
        """The class that the configuration ``value`` under ``key`` is of, ``None`` for a plain mapping.

        Classes whose parts are chosen by a ``class_name`` override this.
        """
        return cls.nested_configs.get(key)

    @classmethod
    def filter_args(cls, **kwargs: Any) -> dict[str, Any]:
        """The entries of ``kwargs`` that are configuration keys of this class; the rest is dropped."""
        fields = config_fields(cls)
        return {key: value for key, value in kwargs.items() if key in fields}

    @classmethod
    def add_class_args(
        cls, parser: jsonargparse.ArgumentParser, prefix: str | None = None, skip: Collection[str] = ()
    ) -> None:
        """Add the options of this class to a ``jsonargparse`` parser, under ``--prefix.``.

        Args:
            parser: where to add.
            prefix: dotted prefix, ``None`` for the top level.
            skip: keys to leave out, because the caller supplies them.
        """
        lead = f"{prefix}." if prefix else ""
        for field in config_fields(cls).values():
            if field.name in skip:
                continue
            nested = cls.nested_configs.get(field.name)
            if nested is not None and not _accepts_none(field.annotation):
                nested.add_class_args(parser, f"{lead}{field.name}")
                continue
            options: dict[str, Any] = {"type": field.annotation, "help": field.help}
            if field.default is REQUIRED:
                options["required"] = True
            else:
                options["default"] = copy.deepcopy(field.default)
            parser.add_argument(f"--{lead}{field.name}", **options)


def _accepts_none(annotation: Any) -> bool:
    return annotation is Any or any(arg is None or arg is type(None) for arg in typing.get_args(annotation))


@cache
def config_fields(cls: type) -> Mapping[str, ConfigField]:
    """The configuration keys of ``cls``; where its signature ends in ``**kwargs``, those of the next class in the MRO follow."""
    method_name = getattr(cls, "config_method", "__init__")
    exclude = set(getattr(cls, "config_exclude", ()))
    fields: dict[str, ConfigField] = {}
    for owner in cls.__mro__:
        exclude |= set(vars(owner).get("config_exclude", ()))
        if method_name not in vars(owner):
            continue
        function = inspect.unwrap(getattr(owner, method_name))
        function = getattr(function, "__func__", function)
        hints = typing.get_type_hints(function)
        helps = _docstring_helps(owner, function)
        more = False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                more = True
            elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL and parameter.name not in {
                "self",
                "cls",
                *fields,
                *exclude,
            }:
                fields[parameter.name] = ConfigField(
                    parameter.name, hints.get(parameter.name, Any), parameter.default, helps.get(parameter.name, "")
                )
        if not more:
            break
    return fields


def _docstring_helps(owner: type, function: Any) -> dict[str, str]:
    import docstring_parser

    helps: dict[str, str] = {}
    for text in (owner.__doc__, function.__doc__):
        if text:
            for parameter in docstring_parser.parse(text).params:
                helps.setdefault(parameter.arg_name, " ".join((parameter.description or "").split()))
    return helps


def check_config(
    cls: type[Configurable], config: Mapping[str, Any], on_unknown: OnUnknown = "error", where: str | None = None
) -> dict[str, Any]:
    """Check ``config`` against the signature of ``cls``, its nested parts included.

    Returns:
        A copy of ``config`` without ``class_name``, without unknown keys, and without null where only a default makes sense.

    Raises:
        ConfigError: names every wrong key, the nearest known one, and the expected type.
    """
    where = where or cls.__name__
    unknown: list[str] = []
    problems: list[str] = []
    checked = _check(cls, config, where, unknown, problems)
    if unknown and on_unknown == "error":
        problems = unknown + problems
    if problems:
        raise ConfigError("; ".join(problems))
    if unknown:
        logger.warning("ignored configuration keys of another release: %s", "; ".join(unknown))
    return checked


def _check(cls: type[Configurable], config: Any, where: str, unknown: list[str], problems: list[str]) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        problems.append(f"{where} must be a mapping of {cls.__name__} keys, got {type(config).__name__}")
        return {}
    config = {str(key): value for key, value in config.items()}
    class_name = None if _has_own_class_name(cls) else config.pop("class_name", None)
    if class_name not in (None, cls.__name__) and where == cls.__name__:
        problems.append(f"{where}: a configuration of class {class_name!r} was given")
    fields = config_fields(cls)
    checked: dict[str, Any] = {}
    for key, value in config.items():
        if key not in fields:
            unknown.append(f"{where}: unknown key {key!r}{nearest(key, fields)}")
            continue
        if value is None and not _accepts_none(fields[key].annotation) and fields[key].default is not REQUIRED:
            # null where a value is needed: nothing was chosen
            continue
        nested = cls.nested_class(key, value) if isinstance(value, Mapping) else None
        if nested is not None:
            checked[key] = _check(nested, value, f"{where}.{key}", unknown, problems)
            if key not in cls.nested_configs:
                # the part is found by its class name when the object is built
                checked[key]["class_name"] = nested.__name__
        else:
            problem = None if isinstance(value, Configurable) else type_problem(fields[key], value)
            if problem:
                problems.append(f"{where}.{key}: {problem}")
            checked[key] = copy.deepcopy(value) if isinstance(value, (dict, list)) else value
    missing = [name for name, field in fields.items() if field.default is REQUIRED and name not in checked]
    if missing:
        problems.append(f"{where}: missing key{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}")
    return checked


def type_problem(field: ConfigField, value: Any) -> str | None:
    """``None`` when ``value`` fits the annotation of ``field``, else what is wrong, in one sentence."""
    if field.annotation is Any:
        return None
    if value is None and not _accepts_none(field.annotation):
        return "expected a value, got null"
    import jsonargparse

    parser = _type_parser(field.annotation)
    plain = list(value) if isinstance(value, tuple) else value
    try:
        parsed = parser.parse_object({"value": plain}, defaults=False).value
        if not _same_text(plain, parsed):
            # a parser of command lines reads "3" as a number; in a configuration it is text
            raise ValueError("text")
    except (jsonargparse.ArgumentError, TypeError, ValueError):
        expected = getattr(field.annotation, "__name__", None) if isinstance(field.annotation, type) else None
        text = expected or str(field.annotation).replace("typing.", "")
        return f"expected {text}, got {value!r} ({type(value).__name__})"
    return None


def _same_text(given: Any, parsed: Any) -> bool:
    """Whether what is text in ``given`` is text in ``parsed``, and nothing else is."""
    if isinstance(given, (list, tuple)) and isinstance(parsed, (list, tuple)):
        return all(_same_text(a, b) for a, b in zip(given, parsed, strict=False))
    if isinstance(given, Mapping) or isinstance(parsed, Mapping):
        return True
    return isinstance(given, str) == isinstance(parsed, str)


@cache
def _type_parser(annotation: Any) -> jsonargparse.ArgumentParser:
    import jsonargparse

    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=annotation)
    return parser
