"""No code of ours turns the checking of certificates off."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
NAMES = {"CERT_NONE", "CERT_OPTIONAL", "_create_unverified_context", "TLSv1", "TLSv1_1"}
CALLS = {"SSLContext"}  # begins without any checking; `create_default_context` does not
SWITCHES = {"verify", "verify_ssl", "check_hostname", "ssl", "ssl_cert_reqs", "ssl_check_hostname"}
OFF = (False, "none")


def unsafe(source: str) -> list[str]:
    """What turns the checking of certificates off, or begins without it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Name) and name_of(node) in NAMES:
            found.append(name_of(node))
        if isinstance(node, ast.Call) and name_of(node.func) in CALLS:
            found.append(name_of(node.func))
        pairs: list[tuple[str | None, ast.expr]] = []
        if isinstance(node, ast.keyword):
            pairs = [(node.arg, node.value)]
        if isinstance(node, ast.Assign):
            pairs = [(name_of(target), node.value) for target in node.targets]
        for switch, value in pairs:
            if switch in SWITCHES and isinstance(value, ast.Constant) and value.value in OFF:
                found.append(f"{switch} = {value.value}")
    return found


def name_of(node: ast.expr) -> str:
    """The last word of a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_sec28_nothing_turns_certificates_off() -> None:
    found = {str(file): unsafe(file.read_text(encoding="utf-8")) for file in SRC.rglob("*.py")}
    assert len(found) > 100 and {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "line",
    [
        "client.get(url, verify=False)",
        "aiohttp.TCPConnector(ssl=False)",
        "context.check_hostname = False",
        "context.verify_mode = ssl.CERT_NONE",
        "ssl._create_unverified_context()",
        "ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)",
        "context.minimum_version = ssl.TLSVersion.TLSv1",
        "redis.Redis(ssl_cert_reqs='none')",
    ],
)
def test_the_check_can_fail(line: str) -> None:
    assert unsafe(line)
