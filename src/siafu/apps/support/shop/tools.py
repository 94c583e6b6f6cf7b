"""All tools of the shop, by name."""

from __future__ import annotations

from siafu.apps.support.shop.calling import ToolSpec
from siafu.apps.support.shop.reading import READING
from siafu.apps.support.shop.writing import WRITING

TOOLS: dict[str, ToolSpec] = {tool.name: tool for tool in (*READING, *WRITING)}
