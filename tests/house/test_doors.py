"""One door per outside library: who may import what."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "siafu"

# library -> the places that may import it (file or folder, relative to src/siafu)
DOORS: dict[str, tuple[str, ...]] = {
    "aiohttp": ("gateway/transport.py", "gateway/connections.py", "service/tasks/posting.py", "bench/"),
    "sqlite3": ("store/",),
    "mcp": ("tools/mcp.py", "tools/mcp_connection.py", "apps/support/shop/", "bench/demo/glue.py"),
    "mcp_types": ("tools/mcp.py", "tools/mcp_connection.py", "apps/support/shop/"),
    "httpx2": ("tools/mcp_http.py", "apps/support/shop/money/payments.py", "bench/gateway/clients/"),
    "genai_prices": ("gateway/pricing.py",),
    "jsonschema": ("tools/schema.py",),
    "jwt": ("border/identity.py", "bench/demo/glue.py"),
    "pydantic": ("config/", "apps/support/shop/", "tools/mcp_connection.py"),
    "pydantic_core": ("config/schema.py",),
    "typer": ("cli/",),
    "opentelemetry": ("observe/tracing.py",),
    "prometheus_client": ("observe/scrape.py",),
    "rich": ("cli/",),
    "uvicorn": ("border/web.py", "apps/support/shop/over_http.py", "service/server.py", "bench/serve/bare.py"),
    "redis": ("store/redis.py", "bench/queue/clients/redis_streams.py"),
    "sqlalchemy": ("store/database.py", "store/address.py"),
    "uvloop": ("cli/", "bench/"),
    "openai": ("bench/gateway/clients/",),
    "litellm": ("bench/gateway/clients/litellm_router.py",),
    "langchain_openai": ("bench/gateway/clients/langchain_chat.py",),
    "pydantic_ai": ("bench/gateway/clients/pydantic_ai_agent.py",),
    "msgspec": ("",),
    "arq": ("bench/queue/clients/arq_jobs.py",),
    "celery": ("bench/queue/clients/celery_tasks.py",),
    "dbos": ("bench/queue/clients/dbos_workflows.py",),
    "streaq": ("bench/queue/clients/streaq_tasks.py",),
    "taskiq": ("bench/queue/clients/taskiq_tasks.py",),
    "taskiq_redis": ("bench/queue/clients/taskiq_tasks.py",),
    "xllamacpp": ("bench/demo/local.py",),
}
STANDARD_BUT_GUARDED = {"sqlite3", "csv"}  # nothing is written for spreadsheets, which run what looks like a formula


def imports(source: str) -> set[str]:
    """Top-level names of everything a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def strangers(path: str, source: str) -> set[str]:
    """Libraries that the file at `path` imports past their door, or that have no door at all."""
    outside = {name for name in imports(source) if name not in sys.stdlib_module_names and name != "siafu"}
    outside |= imports(source) & STANDARD_BUT_GUARDED
    return {name for name in outside if not any(path.startswith(door) for door in DOORS.get(name, ()))}


def test_every_library_is_imported_at_its_door_only() -> None:
    files = sorted(SRC.rglob("*.py"))
    assert files
    found = {str(f.relative_to(SRC)): strangers(str(f.relative_to(SRC)), f.read_text(encoding="utf-8")) for f in files}
    assert {name: what for name, what in found.items() if what} == {}


def test_sec31_nothing_is_written_for_spreadsheets() -> None:
    assert "csv" not in DOORS
    assert strangers("cli/tasks.py", "import csv") == {"csv"}


def test_the_check_can_fail() -> None:
    assert strangers("agents/agent.py", "import aiohttp") == {"aiohttp"}
    assert strangers("agents/agent.py", "from sqlite3 import connect") == {"sqlite3"}
    assert strangers("agents/agent.py", "import requests.sessions") == {"requests"}
    assert strangers("gateway/transport.py", "import aiohttp, asyncio") == set()
