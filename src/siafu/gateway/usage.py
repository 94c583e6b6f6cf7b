"""The tokens of an answer, as upstreams tell them. The names differ, and so does what is counted where:

OpenAI and most others      prompt_tokens, of which prompt_tokens_details.cached_tokens
DeepSeek                    prompt_tokens = prompt_cache_hit_tokens + prompt_cache_miss_tokens
Moonshot                    prompt_tokens, of which cached_tokens
OpenRouter, LiteLLM, Qwen   as OpenAI, beside cached_tokens one of cache_write_tokens, cache_creation_tokens,
                            cache_creation_input_tokens
Anthropic                   input_tokens, and not of them cache_read_input_tokens, cache_creation_input_tokens
"""

from __future__ import annotations

from typing import Any

from siafu.gateway.chat import Usage

_READ = frozenset({"cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"})
_WRITTEN = frozenset({"cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens"})
_BESIDE = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens"})  # Anthropic's, of the input or not
_CACHE = _READ | _WRITTEN
_NONE: dict[str, Any] = {}


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
    details = _table(raw, "prompt_tokens_details", "input_tokens_details")
    cached, made, doubtful = _cache(raw, details)
    if (cached or made) and _beside(raw, total, output, cached + made):
        total += cached + made
    missed = raw.get("prompt_cache_miss_tokens")
    doubtful |= cached + made > total or (missed is not None and _count(missed) not in (None, total - cached))
    cached = min(cached, total)
    spoken = _table(raw, "completion_tokens_details", "output_tokens_details")
    reasoning = _count(spoken.get("reasoning_tokens")) or _count(raw.get("reasoning_tokens")) or 0
    return Usage(
        input=total,
        output=output,
        cached=cached,
        cache_write=min(made, total - cached),
        reasoning=min(reasoning, output),
        doubtful=doubtful,
    )


def _table(raw: dict[str, Any], *names: str) -> dict[str, Any]:
    """The first under these names that holds something."""
    for name in names:
        if (found := raw.get(name)) and isinstance(found, dict):
            return found
    return _NONE


def _cache(*tables: dict[str, Any]) -> tuple[int, int, bool]:
    """Tokens read from the cache and written to it, and whether the tables contradict each other or hold what is no
    count. (Some upstreams fill a standard field with 0 beside one of their own.)
    """
    read: set[int] = set()
    written: set[int] = set()
    for table in tables:
        for name in _CACHE.intersection(table):
            if value := table[name]:
                count = _count(value)
                (read if name in _READ else written).add(-1 if count is None else count)
    if not read and not written:
        return 0, 0, False
    doubtful = len(read) > 1 or len(written) > 1 or -1 in read or -1 in written
    return min(read - {-1}, default=0), max(0, *written) if written else 0, doubtful


def _beside(raw: dict[str, Any], total: int, output: int, cache: int) -> bool:
    """Whether the tokens of the cache stand beside the input, not in it: only under Anthropic's names for them."""
    if not any(map(raw.get, _BESIDE)):
        return False
    if "prompt_tokens" not in raw and "input_tokens_details" not in raw:
        return True
    return cache > total or _count(raw.get("total_tokens")) == total + output + cache


def _count(value: Any) -> int | None:
    """None for what is no count."""
    if type(value) is int or isinstance(value, float):  # no bool
        return int(value) if 0 <= value < 1e9 else None
    return None
