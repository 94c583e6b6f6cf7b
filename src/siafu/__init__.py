"""siafu runs hundreds to thousands of LLM agents in parallel: inside the limits, inside the budget, nothing lost."""

from __future__ import annotations

__version__ = "0.1.0"
