"""Settings: flags over environment over `siafu.toml` over defaults; strict, typed, frozen.

Secrets are never written into the file: `api_key = "env:NAME"` or `"file:/path"`. A key and the base URL it is for
stay together: when the file gives both, OPENAI_* variables, which other programs use too, replace both or neither.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import msgspec
import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from siafu.border.money import parse_usd
from siafu.border.secrets import Secret, checked_key, redact
from siafu.border.urls import checked_base_url
from siafu.config.prompt_cache import PromptCacheSettings
from siafu.config.reuse import ReuseSettings
from siafu.errors import ConfigError

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
    ("SIAFU_REDIS_URL", "redis_url"),
    ("REDIS_URL", "redis_url"),
    ("SIAFU_HOME", "home"),
    ("SIAFU_DATABASE_URL", "database_url"),
)
_SECRET = ("endpoint.api_key", "database_url", "redis_url")  # an address may hold a password

_OURS = ("SIAFU_BASE_URL", "the command")  # an address from here stands for all upstreams of the file


def _amount(value: Any) -> str:
    try:
        parse_usd(value)
    except ConfigError as error:
        raise ValueError(error.message) from None
    return str(value)


Amount = Annotated[str, BeforeValidator(_amount)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, arbitrary_types_allowed=True)


class EndpointSettings(_Section):
    """One OpenAI-compatible endpoint. Without base_url and api_key a simulated endpoint is used."""

    base_url: str | None = None
    api_key: str | Secret | None = None
    headers: dict[str, str] = Field(default={}, repr=False)
    connect_seconds: Seconds = 5.0
    idle_seconds: Seconds = 60.0
    total_seconds: Seconds = 600.0
    prompt_cache: PromptCacheSettings = PromptCacheSettings()


class UpstreamSettings(EndpointSettings):
    """One of several endpoints. api_keys: several keys of one account or more; each has the limits for itself.

    models: the names it offers, or names -> its own names for them; None = every name. tier: 1 is asked first, others
    when none of a lower tier takes the call. weight: its share of the calls within its tier. first_byte_seconds: a call
    that has no answer by then goes elsewhere. key_header, query, proxy, ca_file: as in `gateway.upstream.Upstream`.
    concurrency, rpm, tpm: its own limits; None = those of [limits].
    """

    base_url: str
    api_keys: list[str] | None = Field(default=None, min_length=1, repr=False)
    models: list[str] | dict[str, str] | None = None
    tier: int = Field(default=1, ge=1, le=100)
    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    first_byte_seconds: Seconds | None = None
    key_header: str = "Authorization"
    query: dict[str, str] = {}
    proxy: str | None = None
    ca_file: Path | None = None
    concurrency: int | None = Field(default=None, ge=1, le=10_000)
    rpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @pydantic.model_validator(mode="after")
    def _one_way_of_keys(self) -> Self:
        if self.api_key is not None and self.api_keys is not None:
            raise ValueError("give either api_key or api_keys")
        return self


class RouteSettings(_Section):
    """Calls that fit every condition given here go to `use`: models (`MODEL` or `MODEL@UPSTREAM`), the first wanted,
    the others standing in for it. Lists of names or numbers; tokens are estimated from the length of the request.
    """

    use: list[str] = Field(min_length=1)
    model: list[str] | None = None
    role: list[str] | None = None
    category: list[str] | None = None
    tenant: list[str] | None = None
    priority: list[Annotated[int, Field(ge=1, le=3)]] | None = None
    min_input_tokens: int | None = Field(default=None, ge=0)
    max_input_tokens: int | None = Field(default=None, ge=0)


class ModelSettings(_Section):
    """Model names: `default` for maps and batches, `strong` to classify and decide, `cheap` to answer."""

    default: str | None = None
    strong: str | None = None
    cheap: str | None = None


class LimitSettings(_Section):
    """`concurrency`: calls at once; a `policy` other than fixed learns a limit up to it. `ramp_seconds`: how long the
    first calls take to rise to it. `interactive`: the part of it kept free for calls of priority 1. `rpm`, `tpm`:
    requests and tokens a minute, None = the endpoint's own limit, taken from its headers and learned from its 429s.
    `max_wait_seconds`: the longest wait an endpoint may ask for before the call fails instead. `processes`: how many
    share the limits at least, for the time when Redis cannot say it.
    """

    concurrency: int = Field(default=100, ge=1, le=10_000)
    policy: Literal["fixed", "aimd", "vegas", "window"] = "fixed"
    ramp_seconds: float = Field(default=0.0, ge=0, le=3_600)
    interactive: float = Field(default=0.0, ge=0, lt=1)
    rpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    processes: int = Field(default=1, ge=1, le=10_000)
    max_wait_seconds: Seconds = 600.0


class BudgetSettings(_Section):
    """Amounts like "20 USD". `day`: for all runs of this home together, in all processes, from midnight to midnight
    UTC. `per_item`, `per_agent`: within a run. From the share `soft` of any budget on, `cheaper` models are asked
    instead.
    """

    day: Amount | None = None
    per_item: Amount | None = None
    per_agent: Amount | None = None
    soft: Decimal | None = Field(default=None, gt=0, le=1)
    cheaper: dict[str, str] = {}


class PriceSettings(_Section):
    """US dollars per million tokens, from `date` on."""

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cached: Decimal | None = Field(default=None, ge=0)
    cache_write: Decimal | None = Field(default=None, ge=0)
    date: date


class McpServerSettings(_Section):
    """One MCP server: `command` with `args` and `env` (stdio), or `url` with `headers`."""

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = Field(default={}, repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default={}, repr=False)
    timeout_seconds: Seconds = 30.0
    identity: Literal["siafu"] | None = None


class ToolSettings(_Section):
    """`effects`: by `"server.tool"`, the contract of a tool that acts on the world; see `tools.effect_rules`."""

    effects: dict[str, dict[str, Any]] = {}


class Settings(_Section):
    """Everything a user may set. `home`: where journals and state live. `database_url`: of the effects that tools have
    had, conversations, client keys, budgets and canaries (a path, sqlite:///PATH or postgresql://...); None = files in
    `home`. `upstreams`: several endpoints instead of `endpoint`; `routes`: which calls go where among them, the first
    that fits counts. `reuse`: which whole answers are used again. `redis_url`: where processes of one key share its
    limits, None = each has them for itself.
    """

    endpoint: EndpointSettings = EndpointSettings()
    upstreams: dict[str, UpstreamSettings] = {}
    routes: list[RouteSettings] = []
    reuse: list[ReuseSettings] = []
    models: ModelSettings = ModelSettings()
    limits: LimitSettings = LimitSettings()
    budgets: BudgetSettings = BudgetSettings()
    prices: dict[str, PriceSettings] = {}
    mcp_servers: dict[str, McpServerSettings] = {}
    tools: ToolSettings = ToolSettings()
    database_url: str | Secret | None = None
    redis_url: str | Secret | None = None
    home: Path = Path(".siafu")

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
    tree: dict[str, Any] = {}
    for each in given(config=config, flags=flags, environ=environ):
        _put(tree, each)
    try:
        return Settings.model_validate(tree)
    except pydantic.ValidationError as error:
        raise ConfigError("; ".join(_explain(problem) for problem in error.errors()[:5])) from None


def given(
    *, config: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> list[Given]:
    """Every value that counts for `load`, with where it came from; of several for one place the last one wins. One
    address from the command or SIAFU_BASE_URL takes the place of all upstreams and routes.

    Raises: ConfigError for a file that cannot be read or holds a secret.
    """
    env = os.environ if environ is None else environ
    path = config or (Path(env["SIAFU_CONFIG"]) if env.get("SIAFU_CONFIG") else None)
    found = [Given(place, value, str(path or DEFAULT_FILE)) for place, value in _leaves(_read(path), ())]
    for each in found:
        _refuse_secret(each)
    pair = {each.name for each in found} >= {"endpoint.base_url", "endpoint.api_key"}
    ours_only = pair and not (env.get("OPENAI_BASE_URL") and env.get("OPENAI_API_KEY"))
    for name, place in reversed(ENVIRONMENT):
        if env.get(name) and not (ours_only and name.startswith("OPENAI_")):
            found.append(Given(tuple(place.split(".")), _guarded(place, env[name]), name))
    for place, value in (flags or {}).items():
        if value is not None:
            found.append(Given(tuple(place.split(".")), _guarded(place, value), "the command"))
    if any(each.name == "endpoint.base_url" and each.source in _OURS for each in found):
        found = [each for each in found if each.place[0] not in ("upstreams", "routes")]
    return found


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        path = DEFAULT_FILE
        if not path.exists():
            return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _leaves(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a tree of tables; an empty table is one."""
    if isinstance(value, dict) and (value or not place):
        for name, inner in value.items():
            yield from _leaves(inner, (*place, name))
    else:
        yield place, value


def _refuse_secret(each: Given) -> None:
    texts = each.value if isinstance(each.value, list) else [each.value]
    plain = [text for text in texts if isinstance(text, str) and not refers(text)]
    if (plain and each.place[-1:] in (("api_key",), ("api_keys",))) or any(redact(text) != text for text in plain):
        raise ConfigError(f'{each.name} in {each.source} must be "env:NAME" or "file:/path", never the secret itself')


def _guarded(place: str, value: Any) -> Any:
    """A key that was given itself becomes a Secret at once."""
    literal = place in _SECRET and isinstance(value, str) and not refers(value)
    return Secret(value) if literal else value


def _put(tree: dict[str, Any], each: Given) -> None:
    *sections, name = each.place
    for depth, section in enumerate(sections, 1):
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{'.'.join(each.place[:depth])} must be a table of settings")
    tree[name] = each.value


def _explain(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"{place}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"
    section: Any = Settings
    for part in problem["loc"][:-1]:
        if isinstance(section, type) and issubclass(section, BaseModel):
            section = section.model_fields[part].annotation if part in section.model_fields else None
        else:  # a table or list of them
            section = next(iter(get_args(section)[-1:]), None)
    if not (isinstance(section, type) and issubclass(section, BaseModel)):
        return f"{place} is no setting"
    near = difflib.get_close_matches(str(problem["loc"][-1]), section.model_fields, n=1)
    return f"{place} is no setting" + (f"; did you mean {near[0]}?" if near else "")
