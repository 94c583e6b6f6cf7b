"""The usual glue: asyncio.gather, an OpenAI-style client with retry, tools over MCP. `siafu demo` runs this file as it
is; copy it, edit it, and run the demo with `--glue YOUR_FILE`.

    python glue.py requests.jsonl results.jsonl       (OPENAI_BASE_URL, OPENAI_API_KEY, SHOP_URL, SHOP_KEY are set)
"""

import asyncio
import json
import os
import random
import sys
import time

import aiohttp
import jwt
from mcp import Client

RETRY = {429, 500, 502, 503, 504}
CATEGORIES = ["order_status", "refund", "product_qa", "shipping", "complaint"]
SORT = f'Classify the customer\'s message. Reply with JSON: {{"category": one of {CATEGORIES}}}.'
ANSWER = "You are a support agent of an online shop. Use the tools, then answer briefly in the customer's language."


async def chat(http, slots, **body):
    for attempt in range(6):
        try:
            async with slots, http.post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", json=body) as response:
                if response.status not in RETRY:
                    response.raise_for_status()
                    data = await response.json()
                    print(json.dumps({"usage": data["usage"], "model": body["model"]}), flush=True)  # our cost log
                    return data["choices"][0]["message"]
        except (TimeoutError, aiohttp.ClientConnectionError):
            pass
        await asyncio.sleep(min(20, 2**attempt) + random.random())  # exponential backoff with jitter
    raise RuntimeError("the model did not answer after six attempts")


async def handle(http, slots, shop, tools, request):
    ask = {"role": "user", "content": request["text"]}
    sort = await chat(
        http, slots, model="kimi-k2.5", messages=[{"role": "system", "content": SORT}, ask],
        response_format={"type": "json_object"}, max_tokens=100,
    )  # fmt: skip
    category = json.loads(sort["content"]).get("category", "product_qa")
    claims = {"sub": request["customer"], "aud": "siafu-shop", "scope": [t["function"]["name"] for t in tools],
              "iat": int(time.time()), "exp": int(time.time()) + 900}  # fmt: skip
    meta = {"siafu/identity": jwt.encode(claims, os.environ["SHOP_KEY"], algorithm="HS256")}
    messages = [{"role": "system", "content": f"{ANSWER} Topic: {category}."}, ask]
    for _ in range(6):
        reply = await chat(http, slots, model="deepseek-v3.2", messages=messages, tools=tools, max_tokens=512)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return {"id": request["id"], "status": "ok", "category": category, "answer": reply["content"]}
        for call in reply["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            result = await shop.call_tool(call["function"]["name"], arguments, meta=meta)
            text = "\n".join(block.text for block in result.content if block.type == "text")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    raise RuntimeError("the agent did not finish")


async def main(source, target):
    with open(source, encoding="utf-8") as lines:
        requests = [json.loads(line) for line in lines]
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    slots = asyncio.Semaphore(50)
    async with Client(os.environ["SHOP_URL"]) as shop, aiohttp.ClientSession(headers=headers) as http:
        tools = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
            }
            for t in (await shop.list_tools()).tools
        ]
        work = [handle(http, slots, shop, tools, request) for request in requests]
        results = await asyncio.gather(*work, return_exceptions=True)
    with open(target, "w", encoding="utf-8") as out:
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, BaseException):
                result = {"id": request["id"], "status": "error", "error": repr(result)}
            out.write(json.dumps(result, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
