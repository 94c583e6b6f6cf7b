"""The tokens of an answer, as upstreams tell them. The names differ, and so does what is counted where:

OpenAI and most others      prompt_tokens, of which prompt_tokens_details.cached_tokens
DeepSeek                    prompt_tokens = prompt_cache_hit_tokens + prompt_cache_miss_tokens
Moonshot                    prompt_tokens, of which cached_tokens
OpenRouter, LiteLLM, Qwen   as OpenAI, beside cached_tokens one of cache_write_tokens, cache_creation_tokens,
                            cache_creation_input_tokens
Anthropic                   input_tokens, and not of them cache_read_input_tokens, cache_creation_input_tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siafu.gateway.chat import Usage

_READ = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
_BESIDE = ("cache_read_input_tokens", "cache_creation_input_tokens")  # Anthropic's own, parts of the input or not
_CACHE = frozenset((*_READ, *_WRITTEN))
_NONE: Mapping[str, Any] = {}


def read_usage(raw: Any) -> Usage | None:
    """None when the upstream did not say, also when it said nonsense: unknown is not zero. Of counts of the cache that
    contradict each other those count that cost more, cut to what can be; the usage is `doubtful` then.
    """
    if not isinstance(raw, dict):
        return None
    total, output = _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens"))
    if total is None and output is None:
        total, output = _count(raw.get("input_tokens")), _count(raw.get("output_tokens"))
    if total is None or output is None:
        return None
    details = _table(raw, "prompt_tokens_details") or _table(raw, "input_tokens_details")
    read, written = _told(_READ, details, raw), _told(_WRITTEN, details, raw)
    doubtful = len(read) > 1 or len(written) > 1 or -1 in read or -1 in written
    cached = min(read - {-1}, default=0) if read else 0
    made = max(0, *written) if written else 0
    if (cached or made) and _beside(raw, total, output, cached + made):
        total += cached + made
    missed = _count(raw.get("prompt_cache_miss_tokens"))
    doubtful |= cached + made > total or (missed is not None and cached + missed != total)
    cached = min(cached, total)
    spoken = _table(raw, "completion_tokens_details") or _table(raw, "output_tokens_details")
    reasoning = _count(spoken.get("reasoning_tokens")) or _count(raw.get("reasoning_tokens")) or 0
    return Usage(
        input=total,
        output=output,
        cached=cached,
        cache_write=min(made, total - cached),
        reasoning=min(reasoning, output),
        doubtful=doubtful,
    )


def _told(names: tuple[str, ...], *tables: Mapping[str, Any]) -> set[int]:
    """The different counts above zero under these names, -1 for what is none. (Some upstreams fill a standard field
    with 0 beside one of their own.)
    """
    found: set[int] = set()
    for table in tables:
        if _CACHE.isdisjoint(table):  # nearly always
            continue
        for name in names:
            if value := table.get(name):
                count = _count(value)
                found.add(-1 if count is None else count)
    return found


def _beside(raw: dict[str, Any], total: int, output: int, cache: int) -> bool:
    """Whether the tokens of the cache stand beside the input, not in it: only under Anthropic's names for them."""
    if not any(raw.get(name) for name in _BESIDE):
        return False
    if "prompt_tokens" not in raw and "input_tokens_details" not in raw:
        return True
    return cache > total or _count(raw.get("total_tokens")) == total + output + cache


def _table(raw: dict[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else _NONE


def _count(value: Any) -> int | None:
    """None for what is no count."""
    if type(value) is int or isinstance(value, float):  # no bool
        return int(value) if 0 <= value < 1e9 else None
    return None
