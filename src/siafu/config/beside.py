"""What stands beside the endpoint: whether the Redis and the payment provider that are set can be used."""

from __future__ import annotations

from siafu.apps.support.shop.money.payments import HttpPayments
from siafu.config.advice import Row
from siafu.config.settings import Settings
from siafu.errors import ConfigError, StoreError, ToolUnavailable
from siafu.store.redis import RedisDoor

REDIS_SECONDS = 3.0
REDIS_LIKE = "redis_url (SIAFU_REDIS_URL, REDIS_URL) looks like redis://host:6379/0, rediss:// or unix://; or unset it"
PAYMENTS_LIKE = "SIAFU_PAYMENTS_URL looks like http://127.0.0.1:9200, see: siafu payments serve --help; or unset it"


async def redis_rows(settings: Settings) -> list[Row]:
    """Whether the Redis answers; empty when none is set."""
    check = "redis"
    try:
        url = settings.redis()
        if url is None:
            return []
        door = RedisDoor(url, timeout=REDIS_SECONDS)
        try:
            await door.ask(lambda client: client.ping())
        finally:
            await door.aclose()
    except ConfigError as error:
        return [Row(check=check, state="fail", found=error.message, advice=REDIS_LIKE)]
    except StoreError as error:
        away = "start it, or correct redis_url: until it answers each process keeps to a part of the limits by itself"
        return [Row(check=check, state="fail", found=error.message, advice=away)]
    return [Row(check=check, state="ok", found="answers")]


async def payments_rows(url: str, name: str) -> list[Row]:
    """Whether the payment provider at `url` answers; empty when there is no url. name: as for HttpPayments."""
    check = "payments"
    if not url:
        return []
    try:
        payments = HttpPayments(url, name=name)
    except ConfigError as error:
        return [Row(check=check, state="fail", found=error.message, advice=PAYMENTS_LIKE)]
    try:
        able = await payments.capabilities()
    except ToolUnavailable as error:
        away = "start it, or correct SIAFU_PAYMENTS_URL: until it answers refunds wait"
        return [Row(check=check, state="fail", found=error.message, advice=away)]
    finally:
        await payments.aclose()
    if not able.idempotency and not able.lookup:
        found = f"{able.name} neither honours keys nor can be asked"
        manual = "a refund whose outcome is unclear waits for a person: siafu effects list --state manual_review"
        return [Row(check=check, state="warn", found=found, advice=manual)]
    return [Row(check=check, state="ok", found=f"{able.name} answers")]
