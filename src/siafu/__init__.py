"""siafu runs hundreds to thousands of LLM agents in parallel: inside the limits, inside the budget, nothing lost.

    async for result in siafu.map("Translate into English: {text}", rows, budget="5 USD", journal="run.db"):
        print(result.key, result.value)

Names are loaded when they are first used, so that `import siafu` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siafu.agents.agent import Agent, AgentLimits
    from siafu.agents.steps import FinalStep, ModelStep, RepairStep, ToolStep
    from siafu.agents.task import TaskContext
    from siafu.config.mapping import MapKeywords, map
    from siafu.errors import (
        ApprovalPending,
        BudgetReached,
        ConfigError,
        InputError,
        ModelError,
        NotNow,
        OutcomeUnknown,
        SiafuError,
        StoreError,
        ToolFault,
    )
    from siafu.gateway.chat import ChatAnswer, ChatRequest
    from siafu.gateway.scripted import Scripted
    from siafu.swarm.options import MapOptions
    from siafu.swarm.results import MapResult, MapSummary
    from siafu.swarm.sync import run_sync
    from siafu.tools.functions import Functions
    from siafu.tools.mcp import McpTools
    from siafu.tools.servers import McpServer
    from siafu.tools.toolset import ToolResult

__version__ = "0.1.0"

_HOMES = {
    "Agent": "siafu.agents.agent",
    "AgentLimits": "siafu.agents.agent",
    "ApprovalPending": "siafu.errors",
    "BudgetReached": "siafu.errors",
    "ChatAnswer": "siafu.gateway.chat",
    "ChatRequest": "siafu.gateway.chat",
    "ConfigError": "siafu.errors",
    "FinalStep": "siafu.agents.steps",
    "Functions": "siafu.tools.functions",
    "InputError": "siafu.errors",
    "MapKeywords": "siafu.config.mapping",
    "MapOptions": "siafu.swarm.options",
    "MapResult": "siafu.swarm.results",
    "MapSummary": "siafu.swarm.results",
    "McpServer": "siafu.tools.servers",
    "McpTools": "siafu.tools.mcp",
    "ModelError": "siafu.errors",
    "ModelStep": "siafu.agents.steps",
    "NotNow": "siafu.errors",
    "OutcomeUnknown": "siafu.errors",
    "RepairStep": "siafu.agents.steps",
    "Scripted": "siafu.gateway.scripted",
    "SiafuError": "siafu.errors",
    "StoreError": "siafu.errors",
    "TaskContext": "siafu.agents.task",
    "ToolFault": "siafu.errors",
    "ToolResult": "siafu.tools.toolset",
    "ToolStep": "siafu.agents.steps",
    "map": "siafu.config.mapping",
    "run_sync": "siafu.swarm.sync",
}

__all__ = [
    "Agent",
    "AgentLimits",
    "ApprovalPending",
    "BudgetReached",
    "ChatAnswer",
    "ChatRequest",
    "ConfigError",
    "FinalStep",
    "Functions",
    "InputError",
    "MapKeywords",
    "MapOptions",
    "MapResult",
    "MapSummary",
    "McpServer",
    "McpTools",
    "ModelError",
    "ModelStep",
    "NotNow",
    "OutcomeUnknown",
    "RepairStep",
    "Scripted",
    "SiafuError",
    "StoreError",
    "TaskContext",
    "ToolFault",
    "ToolResult",
    "ToolStep",
    "__version__",
    "map",
    "run_sync",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'siafu' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
