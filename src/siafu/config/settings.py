"""Settings: flags over environment over `siafu.toml` over defaults; strict, typed, frozen.

Secrets are never written into the file: `api_key = "env:NAME"` or `"file:/path"`.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from siafu.border.secrets import Secret, checked_key
from siafu.border.urls import checked_base_url, is_loopback
from siafu.errors import ConfigError

OPENAI = "https://api.openai.com/v1"

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
    ("SIAFU_HOME", "home"),
)

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, arbitrary_types_allowed=True)


class EndpointSettings(_Section):
    """One OpenAI-compatible endpoint. Without base_url and api_key a simulated endpoint is used."""

    base_url: str | None = None
    api_key: str | None = Field(default=None, repr=False)
    headers: dict[str, str] = {}
    connect_seconds: Seconds = 5.0
    idle_seconds: Seconds = 60.0
    total_seconds: Seconds = 600.0


class ModelSettings(_Section):
    """Model names: `default` for maps and batches, `strong` to classify and decide, `cheap` to answer."""

    default: str | None = None
    strong: str | None = None
    cheap: str | None = None


class LimitSettings(_Section):
    """`concurrency`: calls at once. `rpm`: requests a minute, None = the endpoint's own limit, learned from its 429s.
    `max_wait_seconds`: the longest wait an endpoint may ask for before the call fails instead.
    """

    concurrency: int = Field(default=100, ge=1, le=10_000)
    rpm: float | None = Field(default=None, gt=0)
    max_wait_seconds: Seconds = 600.0


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
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    timeout_seconds: Seconds = 30.0
    identity: Literal["siafu"] | None = None


class Settings(_Section):
    """Everything a user may set. `home`: where journals and state live."""

    endpoint: EndpointSettings = EndpointSettings()
    models: ModelSettings = ModelSettings()
    limits: LimitSettings = LimitSettings()
    prices: dict[str, PriceSettings] = {}
    mcp_servers: dict[str, McpServerSettings] = {}
    home: Path = Path(".siafu")

    @property
    def simulated(self) -> bool:
        """True when nothing says which endpoint to use, so the simulated one is."""
        return self.endpoint.base_url is None and self.endpoint.api_key is None

    def base_url(self) -> str:
        """Raises: ConfigError when it is unsafe."""
        given = self.endpoint.base_url
        return checked_base_url(OPENAI if given is None else given, "endpoint.base_url")

    def key(self) -> Secret | None:
        """The key, None for a loopback endpoint without one. Raises: ConfigError."""
        if self.endpoint.api_key is None:
            host = self.base_url().split("://")[1].split("/")[0].rsplit(":", 1)[0]
            if is_loopback(host):
                return None
            raise ConfigError(f"no key for {self.base_url()}: set OPENAI_API_KEY, or endpoint.api_key in siafu.toml")
        return checked_key(resolve(self.endpoint.api_key, "endpoint.api_key"), "the API key")

    def model(self, role: Literal["default", "strong", "cheap"]) -> str:
        """The model for a role; one that is not set falls back on another that is, then on the endpoint's usual one.

        Raises: ConfigError for an endpoint whose models we cannot know.
        """
        own = self.models
        order = {"default": ("default", "cheap", "strong"), "strong": ("strong", "default", "cheap")}
        for name in order.get(role, ("cheap", "default", "strong")):
            if value := getattr(own, name):
                return str(value)
        if self.simulated:
            return "kimi-k2.5" if role == "strong" else "deepseek-v3.2"
        if self.base_url() == OPENAI:
            return "gpt-4.1" if role == "strong" else "gpt-4.1-mini"
        raise ConfigError(f"which model of {self.base_url()}? Set SIAFU_MODEL, or models.{role} in siafu.toml")


def resolve(value: str, where: str, environ: Mapping[str, str] | None = None) -> str:
    """`env:NAME` and `file:/path` replaced by what they name; other values as they are.

    Raises: ConfigError when the variable is not set or the file cannot be read.
    """
    if value.startswith("env:"):
        name = value[4:]
        found = (os.environ if environ is None else environ).get(name)
        if not found:
            raise ConfigError(f"{where} names the environment variable {name}, which is not set")
        return found
    if value.startswith("file:"):
        try:
            return Path(value[5:]).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where} names {value[5:]}, which cannot be read: {error}") from None
    return value


def load(
    *, config: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings of this process.

    config: a file that must exist; None = SIAFU_CONFIG, else ./siafu.toml if there is one. flags: values by dotted
    place (`"limits.rpm": 60`), None = not given.

    Raises: ConfigError naming the place, what is wrong, and the nearest name for an unknown one.
    """
    env = os.environ if environ is None else environ
    tree = _read(config or (Path(env["SIAFU_CONFIG"]) if env.get("SIAFU_CONFIG") else None))
    if isinstance(key := tree.get("endpoint", {}).get("api_key"), str) and not key.startswith(("env:", "file:")):
        raise ConfigError('endpoint.api_key in the file must be "env:NAME" or "file:/path", never the key itself')
    for name, place in reversed(ENVIRONMENT):
        if env.get(name):
            _put(tree, place, env[name])
    for place, value in (flags or {}).items():
        if value is not None:
            _put(tree, place, value)
    try:
        return Settings.model_validate(tree)
    except pydantic.ValidationError as error:
        raise ConfigError("; ".join(_explain(problem) for problem in error.errors()[:5])) from None


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        path = Path("siafu.toml")
        if not path.exists():
            return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _put(tree: dict[str, Any], place: str, value: Any) -> None:
    *sections, name = place.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value


def _explain(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"{place}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"
    section: type[BaseModel] = Settings
    for part in problem["loc"][:-1]:
        found = section.model_fields[part].annotation if part in section.model_fields else None
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return f"{place} is no setting"
        section = found
    near = difflib.get_close_matches(str(problem["loc"][-1]), section.model_fields, n=1)
    return f"{place} is no setting" + (f"; did you mean {near[0]}?" if near else "")
