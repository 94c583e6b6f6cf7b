"""OpenAI's SDK, sync and async, asks a server as its users do, and tells in JSON what it got. It runs without siafu.

python ask_openai.py BASE_URL KEY
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai  # type: ignore[import-not-found] # in an environment of its own

MODEL = "gpt-4.1-mini"
HELLO: list[Any] = [{"role": "user", "content": "안녕하세요"}]
ORDER: list[Any] = [{"role": "user", "content": "주문 1001 어디 있나요?"}]
TOOL: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_order_status",
            "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
        },
    }
]
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "x",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
PICTURE: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "이것은?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        ],
    }
]


def refused(client: openai.OpenAI, **request: Any) -> dict[str, Any]:
    try:
        client.chat.completions.create(**request)
    except openai.APIStatusError as error:
        return {"kind": type(error).__name__, "code": error.code, "request_id": bool(error.request_id)}
    return {}


def plainly(client: openai.OpenAI) -> dict[str, Any]:
    found: dict[str, Any] = {"models": [model.id for model in client.models.list()]}
    plain = client.chat.completions.create(model=MODEL, messages=HELLO, seed=3, extra_body={"mystery": [1.0]})
    found["plain"] = plain.choices[0].message.content
    found["usage"] = bool(plain.usage and plain.usage.total_tokens)
    tools = client.chat.completions.create(model=MODEL, messages=ORDER, tools=TOOL)
    found["tools"] = [call.function.arguments for call in tools.choices[0].message.tool_calls or []]
    with client.chat.completions.stream(model=MODEL, messages=ORDER, tools=TOOL) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls or []
    found["streamed_tools"] = [call.function.arguments for call in calls]
    told = client.chat.completions.create(model=MODEL, messages=PICTURE, response_format=SCHEMA)
    found["schema"] = json.loads(told.choices[0].message.content or "")
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options=options))
    found["streamed_usage"] = bool(chunks[-1].usage and chunks[-1].usage.total_tokens)
    found["support"] = client.chat.completions.create(model="siafu/support", messages=ORDER).choices[0].message.content
    found["no_swarm"] = refused(client, model="siafu/none", messages=HELLO)
    found["no_messages"] = refused(client, model=MODEL, messages=[])
    found["wrong_key"] = refused(client.with_options(api_key="sk-siafu-wrong"), model=MODEL, messages=HELLO)
    return found


async def at_once(url: str, key: str) -> dict[str, Any]:
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        create = client.chat.completions.create
        answers = await asyncio.gather(*(create(model=MODEL, messages=HELLO) for _ in range(30)))
        text = ""
        async for chunk in await create(model=MODEL, messages=HELLO, stream=True):
            text += chunk.choices[0].delta.content or ""
    return {"at_once": len(answers), "streamed": text}


if __name__ == "__main__":
    with openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0) as sync:
        said = plainly(sync)
    sys.stdout.write(json.dumps({**said, **asyncio.run(at_once(sys.argv[1], sys.argv[2]))}))
