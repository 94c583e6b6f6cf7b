"""The usual glue: asyncio.gather, an OpenAI-style client with retry, tools over MCP, and a refund tool that calls the
payment API. `siafu demo` runs this file as it is; copy it, edit it, and run the demo with `--glue YOUR_FILE`.

    python glue.py requests.jsonl results.jsonl  (OPENAI_BASE_URL, OPENAI_API_KEY, SHOP_URL, SHOP_KEY, PAYMENTS_URL)

Its refunds, as such scripts have them. They do: read the order as the customer who asks, pay at most what was paid for
it, and retry with one idempotency key for each call of the tool, as payment SDKs do. They do not: remember after a
restart, or from another request, what was paid; hold the model to the policy in its prompt; ask a person. (A key made
of the order would stop what is paid twice here, and with it a customer's second refund for another part of an order.)
"""

import asyncio
import json
import os
import random
import sys
import time
import uuid

import aiohttp
import jwt
from mcp import Client

RETRY = {409, 429, 500, 502, 503, 504}
READS = ["get_order_status", "check_inventory", "search_products"]
CATEGORIES = ["order_status", "refund", "product_qa", "shipping", "complaint"]
SORT = f'Classify the customer\'s message. Reply with JSON: {{"category": one of {CATEGORIES}}}.'
ANSWER = """You are a support agent of an online shop. Use the tools, then answer briefly in the customer's language.
Refund only orders that have not been sent yet or arrived within 7 days. Above 100,000 KRW or 80 USD, do not refund."""


def function(name, description, parameters):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


REFUND = function("refund", "Pay money back for an order of the customer. 환불.", {"type": "object", "properties": {
    "order_id": {"type": "string", "pattern": "^[0-9]{4,10}$"},
    "amount": {"type": "integer", "description": "In won or US cents; leave it away to refund the whole order."},
}, "required": ["order_id"]})  # fmt: skip


async def post(http, slots, url, body, **headers):
    for attempt in range(6):
        try:
            async with slots, http.post(url, json=body, headers=headers) as response:
                if response.status not in RETRY:
                    response.raise_for_status()
                    return await response.json()
        except (TimeoutError, aiohttp.ClientConnectionError):
            pass
        await asyncio.sleep(min(20, 2**attempt) + random.random())  # exponential backoff with jitter
    raise RuntimeError(f"{url} did not answer after six attempts")


async def chat(http, slots, **body):
    key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    data = await post(http, slots, f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, **key)
    print(json.dumps({"usage": data["usage"], "model": body["model"]}), flush=True)  # our cost log
    return data["choices"][0]["message"]


async def refund(http, slots, shop, meta, order_id, amount=None):
    order = (await shop.call_tool("get_order_status", {"order_id": order_id}, meta=meta)).structured_content or {}
    left = order.get("refundable_minor", 0)  # not there when the order is somebody else's
    if not 0 < (amount or left) <= left:
        return "error: this cannot be refunded"
    body = {"payment": f"pay_{order_id}", "amount": amount or left, "currency": order["currency"],
            "reference": f"refund-{order_id}"}  # fmt: skip
    key = {"Idempotency-Key": str(uuid.uuid4())}  # so that a retry after a lost answer does not pay again
    return json.dumps(await post(http, slots, f"{os.environ['PAYMENTS_URL']}/v1/refunds", body, **key))


async def handle(http, slots, shop, tools, request):
    ask = {"role": "user", "content": request["text"]}
    sort = await chat(
        http, slots, model="kimi-k2.5", messages=[{"role": "system", "content": SORT}, ask],
        response_format={"type": "json_object"}, max_tokens=100,
    )  # fmt: skip
    category = json.loads(sort["content"]).get("category", "product_qa")
    claims = {"sub": request["customer"], "aud": "siafu-shop", "scope": " ".join(READS), "request": request["id"],
              "iat": int(time.time()), "exp": int(time.time()) + 900}  # fmt: skip
    meta = {"siafu/identity": jwt.encode(claims, os.environ["SHOP_KEY"], algorithm="HS256")}
    messages = [{"role": "system", "content": f"{ANSWER} Topic: {category}."}, ask]
    for _ in range(6):
        reply = await chat(http, slots, model="deepseek-v3.2", messages=messages, tools=tools, max_tokens=512)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return {"id": request["id"], "status": "ok", "category": category, "answer": reply["content"]}
        for call in reply["tool_calls"]:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            if name == "refund":
                text = await refund(http, slots, shop, meta, **arguments)
            else:
                result = await shop.call_tool(name, arguments, meta=meta)
                text = "\n".join(block.text for block in result.content if block.type == "text")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    raise RuntimeError("the agent did not finish")


async def main(source, target):
    with open(source, encoding="utf-8") as lines:
        requests = [json.loads(line) for line in lines]
    slots = asyncio.Semaphore(50)
    async with Client(os.environ["SHOP_URL"]) as shop, aiohttp.ClientSession() as http:
        there = (await shop.list_tools()).tools
        tools = [REFUND, *(function(t.name, t.description, t.input_schema) for t in there if t.name in READS)]
        work = [handle(http, slots, shop, tools, request) for request in requests]
        results = await asyncio.gather(*work, return_exceptions=True)
    with open(target, "w", encoding="utf-8") as out:
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, BaseException):
                result = {"id": request["id"], "status": "error", "error": repr(result)}
            out.write(json.dumps(result, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
