"""The sections of the settings: names, types, bounds and defaults. What they mean stands in `config/described.py`."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from siafu.border.money import parse_usd
from siafu.border.secrets import Secret
from siafu.config.prompt_cache import PromptCacheSettings
from siafu.errors import ConfigError


def _amount(value: Any) -> str:
    try:
        parse_usd(value)
    except ConfigError as error:
        raise ValueError(error.message) from None
    return str(value)


def _no_number(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError("write it as 2026-01-31")
    return value


def _expanded(path: Path) -> Path:
    """No shell has replaced a ~ that stands in a file of settings or variables."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("there is no home folder for its ~; write the whole path") from None


_DIGITS = r"([0-9]{1,3}(,[0-9]{3})+|[0-9]+(_[0-9]+)*)(\.[0-9]+)?|\.[0-9]+"
_USD = r"([Uu][Ss]([Dd]|\$)|\$)?"
_AMOUNT = {
    "anyOf": [
        {"type": "string", "pattern": rf"^\s*{_USD}\s*({_DIGITS})\s*{_USD}\s*$"},
        {"type": "integer", "minimum": 0, "maximum": 1_000_000},
    ]
}
# The types are strict: "5" in the file is no number. TOML has neither paths nor decimals, so these are read from text.
Amount = Annotated[str, BeforeValidator(_amount), WithJsonSchema(_AMOUNT)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Usd = Annotated[Decimal, Field(ge=0, strict=False)]
Folder = Annotated[Path, Field(strict=False), AfterValidator(_expanded)]  # or a file
Day = Annotated[date, BeforeValidator(_no_number), Field(strict=False)]
SecretName = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^(env|file):.+$"})]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class EndpointSettings(Section):
    """One OpenAI-compatible endpoint. Without base_url and api_key a simulated endpoint is used."""

    base_url: str | None = None
    api_key: SecretName | Secret | None = None
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
    api_keys: list[SecretName] | None = Field(default=None, min_length=1, repr=False)
    models: list[str] | dict[str, str] | None = None
    tier: int = Field(default=1, ge=1, le=100)
    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    first_byte_seconds: Seconds | None = None
    key_header: str = "Authorization"
    query: dict[str, str] = {}
    proxy: str | None = None
    ca_file: Folder | None = None
    concurrency: int | None = Field(default=None, ge=1, le=10_000)
    rpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @pydantic.model_validator(mode="after")
    def _one_way_of_keys(self) -> Self:
        if self.api_key is not None and self.api_keys is not None:
            raise ValueError("give either api_key or api_keys")
        return self


class RouteSettings(Section):
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


class ModelSettings(Section):
    """Model names: `default` for maps and batches, `strong` to classify and decide, `cheap` to answer."""

    default: str | None = None
    strong: str | None = None
    cheap: str | None = None


class LimitSettings(Section):
    """`concurrency`: calls at once; a `policy` other than fixed learns a limit up to it. `ramp_seconds`: how long the
    first calls take to rise to it. `interactive`: the part of it kept free for calls of priority 1. `rpm`, `tpm`:
    requests and tokens a minute, None = the endpoint's own limit, taken from its headers and learned from its 429s.
    `max_wait_seconds`: the longest wait an endpoint may ask for before the call fails instead. `processes`: how many
    share the limits; without Redis each takes its part, with it that is the least while Redis cannot say.
    """

    concurrency: int = Field(default=100, ge=1, le=10_000)
    policy: Literal["fixed", "aimd", "vegas", "window"] = "fixed"
    ramp_seconds: float = Field(default=0.0, ge=0, le=3_600)
    interactive: float = Field(default=0.0, ge=0, lt=1)
    rpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    processes: int = Field(default=1, ge=1, le=10_000)
    max_wait_seconds: Seconds = 600.0


class BudgetSettings(Section):
    """Amounts like "20 USD". `day`: for all runs of this home together, in all processes, from midnight to midnight
    UTC; `roles`: the same for the agents of one role each; `keys`: for one key of an upstream each. `per_item`,
    `per_agent`: within a run. From the share `soft` of any of them but `keys` on, `cheaper` models are asked instead.
    """

    day: Amount | None = None
    roles: dict[str, Amount] = {}
    keys: dict[str, Amount] = {}
    per_item: Amount | None = None
    per_agent: Amount | None = None
    soft: Decimal | None = Field(default=None, gt=0, le=1, strict=False)
    cheaper: dict[str, str] = {}


class BatchSettings(Section):
    """Files and batches of `siafu serve`. `at_once`: batches that are worked on at a time. `keep_days`: how long files,
    and batches that have ended, are kept; 0 = for ever. `key_gigabytes`: what the files of one client key may take up.
    """

    at_once: int = Field(default=4, ge=1, le=100)
    keep_days: float = Field(default=30.0, ge=0, le=3_650)
    key_gigabytes: float = Field(default=10.0, gt=0, le=1e6)


class PriceSettings(Section):
    """US dollars per million tokens, from `date` on."""

    input: Usd
    output: Usd
    cached: Usd | None = None
    cache_write: Usd | None = None
    date: Day


class McpServerSettings(Section):
    """One MCP server: `command` with `args` and `env` (stdio), or `url` with `headers`."""

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = Field(default={}, repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default={}, repr=False)
    timeout_seconds: Seconds = 30.0
    identity: Literal["siafu"] | None = None


class WebhookSettings(Section):
    """Who is told when a task has ended. tenants: whose tasks, None = all. allow_private: the host may be in a private
    network.
    """

    url: str
    secret: SecretName = Field(repr=False)
    tenants: list[str] | None = None
    allow_private: bool = False


class ToolSettings(Section):
    """`effects`: by `"server.tool"`, the contract of a tool that acts on the world; see `tools.effect_rules`."""

    effects: dict[str, dict[str, Any]] = {}


class TaskSettings(Section):
    """`backlog`: tasks that may be open; then no more are accepted."""

    backlog: int = Field(default=100_000, ge=1, le=100_000_000)
