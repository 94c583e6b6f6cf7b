"""A simulated OpenAI-compatible endpoint over a real socket: what the demo, the tests and the benches talk to.

Answers come from rules, not from a model, and are a function of (seed, model, request bytes, attempt header).
Nothing here is shared with the rest of siafu except `siafu.errors`: prompts, limiter, token counter and parser are its
own, so that a test and the code under test never share an assumption.

::

    request.py   what was asked, and what a provider would refuse
    answers.py   what to say: words.py + glossary.py read, tool_calls.py and schemas.py decide, prose.py writes
    plan.py      one request, one plan: answer, tokens (tokens.py), speed (latency.py), all drawn from draws.py
    limits.py    GCRA and concurrency            cache.py    prompt-cache credit
    faults.py    which fault, by rate or script  refusals.py, bend.py, wire.py  what a fault looks like
    records.py   what happened                   control.py  telling it, under /_sim/
    server.py    the endpoint                    serve.py    the process
"""
