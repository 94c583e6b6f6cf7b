"""OpenAI's SDK stores files and has batches run, as its users do, and tells in JSON what it got. It runs without siafu.

python ask_openai_batches.py BASE_URL KEY OTHER_KEY
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import openai  # type: ignore[import-not-found] # in an environment of its own

IDS = [f"질문-{number}" for number in range(30)]
ENDED = ("completed", "failed", "expired", "cancelled")


def lines(ids: list[str]) -> bytes:
    body = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "안녕하세요"}]}
    asked = [{"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body} for id in ids]
    return b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in asked)


def ended(client: openai.OpenAI, id: str) -> Any:
    for _ in range(1200):
        batch = client.batches.retrieve(id)
        if batch.status in ENDED:
            return batch
        time.sleep(0.05)
    raise AssertionError(f"{id} has not ended")


def made(client: openai.OpenAI, data: bytes, **more: Any) -> Any:
    file = client.files.create(file=("질문.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **more
    )


def refused(call: Any, *args: Any, **how: Any) -> dict[str, Any]:
    try:
        call(*args, **how)
    except openai.APIStatusError as error:
        return {"kind": type(error).__name__, "code": error.code}
    return {}


def story(client: openai.OpenAI, other: openai.OpenAI) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "질문.jsonl"
        path.write_bytes(lines(IDS))
        days = {"anchor": "created_at", "seconds": 86_400}
        with path.open("rb") as data:
            file = client.files.create(file=data, purpose="batch", expires_after=days)
    found["file"] = [file.object, file.purpose, file.status, file.filename, file.expires_at - file.created_at]
    found["same"] = client.files.retrieve(file.id).id == file.id
    found["content"] = client.files.content(file.id).read() == lines(IDS)
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"이름": "밤"},
    )
    found["made"] = [batch.object, batch.endpoint, batch.completion_window, batch.metadata, batch.errors]
    batch = ended(client, batch.id)
    found["ended"] = [batch.status, batch.request_counts.model_dump(), batch.error_file_id]
    with client.files.with_streaming_response.content(batch.output_file_id) as reply:
        records = [json.loads(line) for line in reply.iter_lines() if line]
    found["ids"] = sorted(each["custom_id"] for each in records)
    found["answers"] = sorted({each["response"]["body"]["choices"][0]["message"]["content"] for each in records})

    bad = ended(client, made(client, lines(["a"]) + b"{\n" + lines(["a"])).id)
    found["bad"] = [bad.status, [[error.code, error.line] for error in bad.errors.data]]
    slow = made(client, lines([str(number) for number in range(5000)]))
    found["cancelling"] = client.batches.cancel(slow.id).status
    slow = ended(client, slow.id)
    found["cancelled"] = [slow.status, slow.cancelled_at >= slow.cancelling_at]
    found["again"] = refused(client.batches.cancel, batch.id)
    found["batches"] = [each.id for each in client.batches.list(limit=1)] == [slow.id, bad.id, batch.id]
    outputs = [each.id for each in client.files.list(limit=1, order="asc") if each.purpose == "batch_output"]
    found["outputs"] = batch.output_file_id in outputs
    found["others"] = [
        refused(other.files.retrieve, file.id),
        refused(other.files.content, batch.output_file_id),
        refused(other.batches.retrieve, batch.id),
    ]
    found["deleted"] = client.files.delete(file.id).deleted
    found["gone"] = refused(client.files.retrieve, file.id)
    found["purpose"] = refused(client.files.create, file=b"x", purpose="vision")
    return found


async def at_once(url: str, key: str) -> str:
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        file = await client.files.create(file=lines(["하나"]), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        while batch.status not in ENDED:
            await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
        return str((await client.files.content(batch.output_file_id)).text)


if __name__ == "__main__":
    address, key, other_key = sys.argv[1:]
    with (
        openai.OpenAI(base_url=address, api_key=key, max_retries=0) as one,
        openai.OpenAI(base_url=address, api_key=other_key, max_retries=0) as two,
    ):
        told = story(one, two)
    sys.stdout.write(json.dumps({**told, "async": json.loads(asyncio.run(at_once(address, key)))["custom_id"]}))
