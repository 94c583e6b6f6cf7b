"""Settings: flags over environment over `siafu.toml` over defaults; strict, typed, frozen.

Secrets are never written into the file: `api_key = "env:NAME"` or `"file:/path"`. A key and the base URL it is for
stay together: when the file gives both, OPENAI_* variables, which other programs use too, replace both or neither.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pydantic
from pydantic import Field, PrivateAttr

from siafu.border.secrets import Secret, checked_key, redact
from siafu.border.urls import checked_base_url
from siafu.config.guarding import HedgingSettings, PatienceSettings
from siafu.config.reuse import ReuseSettings
from siafu.config.sections import (
    BatchSettings,
    BudgetSettings,
    EndpointSettings,
    Folder,
    LimitSettings,
    McpServerSettings,
    ModelSettings,
    PriceSettings,
    RouteSettings,
    Section,
    TaskSettings,
    ToolSettings,
    UpstreamSettings,
    WebhookSettings,
)
from siafu.config.wording import Wrong, explained
from siafu.errors import ConfigError, ConfigErrors

OPENAI = "https://api.openai.com/v1"
DEFAULT_FILE = Path("siafu.toml")

# Environment variable -> place in the settings. Of two names for one place the first that is set wins.
ENVIRONMENT: tuple[tuple[str, str], ...] = (
    ("SIAFU_BASE_URL", "endpoint.base_url"),
    ("OPENAI_BASE_URL", "endpoint.base_url"),
    ("SIAFU_API_KEY", "endpoint.api_key"),
    ("OPENAI_API_KEY", "endpoint.api_key"),
    ("SIAFU_MODEL", "models.default"),
    ("SIAFU_STRONG_MODEL", "models.strong"),
    ("SIAFU_CHEAP_MODEL", "models.cheap"),
    ("SIAFU_CONCURRENCY", "limits.concurrency"),
    ("SIAFU_RPM", "limits.rpm"),
    ("SIAFU_TPM", "limits.tpm"),
    ("SIAFU_PROCESSES", "limits.processes"),
    ("SIAFU_REDIS_URL", "redis_url"),
    ("REDIS_URL", "redis_url"),
    ("SIAFU_HOME", "home"),
    ("SIAFU_DATABASE_URL", "database_url"),
)
_SECRET = ("endpoint.api_key", "database_url", "redis_url")  # an address may hold a password

_OURS = ("SIAFU_BASE_URL", "the command")  # an address from here stands for all upstreams of the file


class Origin(msgspec.Struct, frozen=True):
    """Where settings were read, so that they can be read again. file: with its whole path. mark: of that file just
    before; None = it was not there, and need not be. flags: of the command. environ: None = this process's.
    """

    file: Path
    mark: tuple[int, ...] | None
    flags: Mapping[str, Any]
    environ: Mapping[str, str] | None

    def __repr__(self) -> str:
        return f"Origin({str(self.file)!r})"


class Settings(Section):
    """Everything a user may set. `home`: where journals and state live. `database_url`: of the effects that tools have
    had, conversations, client keys, budgets and canaries (a path, sqlite:///PATH or postgresql://...); None = files in
    `home`. `upstreams`: several endpoints instead of `endpoint`; `routes`: which calls go where among them, the first
    that fits counts. `reuse`: which whole answers are used again. `redis_url`: where processes of one key share its
    limits, and workers are rung for; None = each has limits for itself.
    """

    endpoint: EndpointSettings = EndpointSettings()
    upstreams: dict[str, UpstreamSettings] = Field(default={})
    routes: list[RouteSettings] = Field(default=[])
    reuse: list[ReuseSettings] = Field(default=[])
    models: ModelSettings = ModelSettings()
    limits: LimitSettings = LimitSettings()
    patience: PatienceSettings = PatienceSettings()
    hedging: HedgingSettings = HedgingSettings()
    budgets: BudgetSettings = BudgetSettings()
    batches: BatchSettings = BatchSettings()
    prices: dict[str, PriceSettings] = Field(default={})
    mcp_servers: dict[str, McpServerSettings] = Field(default={})
    tools: ToolSettings = ToolSettings()
    tasks: TaskSettings = TaskSettings()
    webhooks: dict[str, WebhookSettings] = Field(default={})
    database_url: str | Secret | None = None
    redis_url: str | Secret | None = None
    home: Folder = Path(".siafu")
    _origin: Origin | None = PrivateAttr(None)

    @property
    def origin(self) -> Origin | None:
        """None for settings that were not loaded."""
        return self._origin

    def database(self, file: str) -> str | Path:
        """Where state in SQL lives: `database_url`, or `file` in `home` without one. Raises: ConfigError."""
        given = self.database_url
        if given is None:
            return self.home / file
        return given.reveal() if isinstance(given, Secret) else resolve(given, "database_url")

    def redis(self) -> Secret | None:
        """The address of Redis. Raises: ConfigError."""
        given = self.redis_url
        if given is None or isinstance(given, Secret):
            return given
        return Secret(resolve(given, "redis_url"))

    @property
    def simulated(self) -> bool:
        """True when nothing says which endpoint to use, so the simulated one is."""
        return not self.upstreams and self.endpoint.base_url is None and self.endpoint.api_key is None

    def base_url(self) -> str:
        """Raises: ConfigError when it is unsafe."""
        given = self.endpoint.base_url
        return checked_base_url(OPENAI if given is None else given, "endpoint.base_url")

    def model(self, role: Literal["default", "strong", "cheap"]) -> str:
        """The model for a role; one that is not set falls back on another that is, then on the endpoint's usual one.

        Raises: ConfigError for an endpoint whose models we cannot know.
        """
        own = self.models
        order = {"default": ("default", "cheap", "strong"), "strong": ("strong", "default", "cheap")}
        for name in order.get(role, ("cheap", "default", "strong")):
            if value := getattr(own, name):
                return str(value)
        if self.upstreams:
            first = next(iter(next(iter(self.upstreams.values())).models or ()), None)
            if first is None:
                raise ConfigError(f"which model? Set SIAFU_MODEL, or models.{role} in siafu.toml")
            return first
        if self.simulated:
            return "kimi-k2.5" if role == "strong" else "deepseek-v3.2"
        if self.base_url() == OPENAI:
            return "gpt-4.1" if role == "strong" else "gpt-4.1-mini"
        raise ConfigError(f"which model of {self.base_url()}? Set SIAFU_MODEL, or models.{role} in siafu.toml")


def refers(value: str) -> bool:
    """True for `env:NAME` and `file:/path`."""
    return value.startswith(("env:", "file:"))


def resolve(value: str, where: str) -> str:
    """`env:NAME` and `file:/path` replaced by what they name; other values as they are.

    Raises: ConfigError when the variable is not set or the file cannot be read.
    """
    if value.startswith("env:"):
        found = os.environ.get(value[4:])
        if not found:
            raise ConfigError(f"{where} names the environment variable {value[4:]}, which is not set")
        return found
    if value.startswith("file:"):
        try:
            return Path(value[5:]).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where} names {value[5:]}, which cannot be read: {error}") from None
    return value


def secret_key(given: str | Secret, where: str) -> Secret:
    """The key that a setting gives or names. Raises: ConfigError, also for a placeholder."""
    text = given.reveal() if isinstance(given, Secret) else resolve(given, where)
    return checked_key(text, f"the API key of {where}" if where != "endpoint.api_key" else "the API key")


def resolved(values: Mapping[str, str], where: str) -> dict[str, str | Secret]:
    """A table of headers or variables; what came from elsewhere is kept secret. Raises: as `resolve`."""
    texts = {name: resolve(value, f"{where}.{name}") for name, value in values.items()}
    return {name: Secret(text) if refers(values[name]) else text for name, text in texts.items()}


class Given(msgspec.Struct, frozen=True):
    """One value that somebody gave. `source`: a file, a variable or "the command"."""

    place: tuple[str, ...]
    value: Any
    source: str
    in_file: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.place)


def load(
    *, config: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings of this process.

    config: a file that must exist; None = SIAFU_CONFIG, else ./siafu.toml if there is one. flags: values by dotted
    place (`"limits.rpm": 60`), None = not given.

    Raises: ConfigError naming the place, what is wrong, and the nearest name for an unknown one.
    """
    file = settings_file(config, environ).absolute()
    mark = file_mark(file)
    settings = settled(given(config=config, flags=flags, environ=environ))
    literal = {place: _guarded(place, value) for place, value in (flags or {}).items()}
    settings._origin = Origin(file, mark, literal, environ)
    return settings


def load_again(origin: Origin) -> Settings:
    """The settings as they are now. Raises: ConfigError, also when a file that was there is gone."""
    mark = file_mark(origin.file)
    file = None if origin.mark is mark is None else origin.file
    settings = settled(_given(file, str(file), origin.flags, origin.environ))
    settings._origin = msgspec.structs.replace(origin, mark=mark)
    return settings


def file_mark(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written anew; None when there is no plain file."""
    try:
        found = path.stat()
    except OSError:
        return None
    own = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return own if stat.S_ISREG(found.st_mode) else None


def settled(values: Iterable[Given]) -> Settings:
    """The settings that `values` make. Raises: ConfigErrors with all that is wrong."""
    found = sifted(values)
    if isinstance(found, Settings):
        return found
    raise ConfigErrors([each.text for each in found])


def sifted(values: Iterable[Given]) -> Settings | list[Wrong]:
    """The same, or what is wrong."""
    tree: dict[str, Any] = {}
    wrong = []
    for each in values:
        try:
            _refuse_secret(each)
            _put(tree, each)
        except ConfigError as error:
            wrong.append(Wrong(each.place, error.message))
    try:
        found = Settings.model_validate(tree)
    except pydantic.ValidationError as error:
        wrong += explained(error.errors(), Settings)
    return wrong or found


def given(
    *, config: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> list[Given]:
    """Every value that counts for `load`, with where it came from; of several for one place the last one wins. One
    address from the command or SIAFU_BASE_URL takes the place of all upstreams and routes.

    Raises: ConfigError for a file that cannot be read.
    """
    file = settings_file(config, environ)
    there = file is not DEFAULT_FILE or file.exists()
    return _given(file if there else None, str(file), flags or {}, environ)


def settings_file(config: Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """The file that is read: the one that was named, else ./siafu.toml, which need not be there."""
    named = (os.environ if environ is None else environ).get("SIAFU_CONFIG")
    return config or (Path(named) if named else DEFAULT_FILE)


def _given(file: Path | None, source: str, flags: Mapping[str, Any], environ: Mapping[str, str] | None) -> list[Given]:
    env = os.environ if environ is None else environ
    tree = {} if file is None else _read(file)
    found = [Given(place, value, source, in_file=True) for place, value in leaves(tree)]
    pair = {each.name for each in found} >= {"endpoint.base_url", "endpoint.api_key"}
    ours_only = pair and not (env.get("OPENAI_BASE_URL") and env.get("OPENAI_API_KEY"))
    for name, place in reversed(ENVIRONMENT):
        if env.get(name) and not (ours_only and name.startswith("OPENAI_")):
            found.append(Given(tuple(place.split(".")), _guarded(place, _number(place, env[name])), name))
    for place, value in flags.items():
        if value is not None:
            found.append(Given(tuple(place.split(".")), _guarded(place, value), "the command"))
    if any(each.name == "endpoint.base_url" and each.source in _OURS for each in found):
        found = [each for each in found if not _of_upstreams(each.place)]
    return found


def _of_upstreams(place: Sequence[str]) -> bool:
    """Whether a setting is about upstreams of the file: they, what leads to them, or the budget of a key of theirs."""
    of_key = tuple(place[:2]) == ("budgets", "keys") and not place[-1].startswith("default#")
    return place[0] in ("upstreams", "routes") or of_key


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def leaves(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a tree of tables; an empty table is one."""
    if isinstance(value, dict) and (value or not place):
        for name, inner in value.items():
            yield from leaves(inner, (*place, name))
    else:
        yield place, value


def _refuse_secret(each: Given) -> None:
    if not each.in_file:
        return
    texts = each.value if isinstance(each.value, list) else [each.value]
    plain = [text for text in texts if isinstance(text, str) and not refers(text)]
    if (plain and each.place[-1:] in (("api_key",), ("api_keys",), ("secret",))) or any(
        redact(text) != text for text in plain
    ):
        raise ConfigError(f'{each.name} in {each.source} must be "env:NAME" or "file:/path", never the secret itself')


def _guarded(place: str, value: Any) -> Any:
    """A key that was given itself becomes a Secret at once; the path of a database is none, and messages name it."""
    literal = place in _SECRET and isinstance(value, str) and not refers(value)
    path = literal and place == "database_url" and set(":=@").isdisjoint(value)
    return Secret(value) if literal and not path else value


def _number(place: str, text: str) -> Any:
    """What a variable says, as the type that its place wants; a text that is no number is refused there."""
    if place.startswith("limits."):
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(text)
    return text


def _put(tree: dict[str, Any], each: Given) -> None:
    *sections, name = each.place
    for depth, section in enumerate(sections, 1):
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{'.'.join(each.place[:depth])} must be a table of settings")
    tree[name] = each.value
