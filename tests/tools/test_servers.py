"""The configuration of MCP servers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from siafu.border.secrets import Secret
from siafu.errors import ConfigError
from siafu.tools.child import small_environment
from siafu.tools.servers import McpServer, parse_servers


def parse(**servers: Any) -> list[McpServer]:
    return parse_servers(json.dumps({"mcpServers": servers}), {"SHOP_KEY": "key-from-the-environment"})


def test_the_well_known_form() -> None:
    shop, web, old = parse(
        shop={
            "command": "siafu",
            "args": ["shop", "serve"],
            "env": {"KEY": "env:SHOP_KEY", "MODE": "시험"},
            "cwd": "/",
        },
        web={"type": "http", "url": "https://example.com/mcp?x=1", "headers": {"authorization": "env:SHOP_KEY"}},
        old={"type": "sse", "url": "http://127.0.0.1:9/sse", "timeout": 5, "identity": "siafu"},
    )
    assert (shop.name, shop.command, shop.args, shop.cwd) == ("shop", "siafu", ("shop", "serve"), "/")
    assert shop.env == {"KEY": Secret("key-from-the-environment"), "MODE": "시험"}
    assert (web.url, web.sse, web.timeout, web.identity) == ("https://example.com/mcp?x=1", False, 30.0, None)
    assert (old.sse, old.timeout, old.identity) == (True, 5.0, "siafu")
    assert "key-from-the-environment" not in repr([shop, web, old])
    assert parse_servers(b'{"mcpServers": {}}', {}) == parse_servers("{}", {}) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"comand": "x"}, "unknown key 'comand'; did you mean command?"),
        ({"command": "x", "zzz": 1}, "unknown key 'zzz'; known: type, command"),
        ({}, "needs either a command or a url"),
        ({"command": "x", "url": "https://a.b/mcp"}, "needs either a command or a url"),
        ({"command": "x", "headers": {"a": "b"}}, "has a command, so headers"),
        ({"url": "https://a.b/mcp", "args": ["x"]}, "has a url, so args"),
        ({"url": "http://a.b/mcp"}, "use https://"),
        ({"url": "https://user:pw@a.b/mcp"}, "must not hold a user name"),
        ({"url": "ftp://a.b/mcp"}, "must look like https"),
        ({"url": "https://[::1/mcp"}, "is no URL"),
        ({"command": "x", "args": "shop serve"}, "Expected `array`"),
        ({"command": "x", "args": [1]}, "Expected `str`"),
        ({"command": "x", "env": {"A": 1}}, "env must be an object of texts"),
        ({"command": "x", "env": {"A": "env:NOT_SET"}}, "env.A names the variable NOT_SET, which is not set"),
        ({"command": "x", "timeout": 0}, "timeout must be above 0"),
        ({"command": "x", "timeout": "5"}, "Expected `float`"),
        ({"command": "x", "identity": "me"}, "Invalid enum value 'me'"),
        ({"command": "x", "type": "http"}, "type http needs a url"),
        ({"url": "https://a.b", "type": "stdio"}, "type stdio needs a command"),
        ({"command": "x", "type": "carrier-pigeon"}, "type is one of stdio, http"),
        ([], "must be an object"),
        ("siafu shop", "must be an object"),
    ],
)
def test_what_is_refused(options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse(shop=options)
    assert "MCP server 'shop'" in caught.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ('{"mcpservers": {}}', "did you mean mcpServers"),
        ('{"mcpServers": []}', "must be an object"),
        ("[]", "must be an object"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "stands twice"),
        ('{"mcpServers": {"": {"command": "x"}}}', "1 to 64 printable"),
        ('{"mcpServers": {"a\\nb": {"command": "x"}}}', "1 to 64 printable"),
    ],
)
def test_files_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_servers(text, {})


def test_the_environment_of_a_child() -> None:
    environ = {"PATH": "/bin", "HOME": "/h", "LC_CTYPE": "ko", "OPENAI_API_KEY": "k", "SIAFU_X": "y", "PYTHONPATH": "p"}
    assert small_environment({"A": Secret("one-two-three"), "HOME": "/other"}, environ) == {
        "PATH": "/bin",
        "HOME": "/other",
        "LC_CTYPE": "ko",
        "A": "one-two-three",
    }


def test_only_the_mcp_modules_import_the_sdk() -> None:
    names = "bounds child content filtered functions joined naming schema servers toolset validated"
    program = (
        f"import sys, {', '.join('siafu.tools.' + name for name in names.split())}\n"
        "heavy = {'mcp', 'mcp_types', 'httpx2', 'pydantic', 'anyio'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    control = subprocess.run(
        [sys.executable, "-c", program.replace("siafu.tools.child", "siafu.tools.mcp")], capture_output=True, text=True
    )
    assert "mcp_types" in control.stderr
