"""Batches over HTTP: what a client asks for, what it is told, and how a batch ends."""

from __future__ import annotations

from pathlib import Path

from .front import front, lines


async def test_a_batch_from_its_upload_to_its_output(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        status, file = await client.upload(lines("가", "나", "다"))
        assert (status, file["object"], file["purpose"], file["filename"]) == (200, "file", "batch", "질문.jsonl")
        assert file["bytes"] == len(lines("가", "나", "다"))
        assert file["expires_at"] == file["created_at"] + 30 * 86_400
        status, batch = await client.create(file["id"], metadata={"이름": "첫째"})
        assert (status, batch["status"], batch["object"]) == (200, "validating", "batch")
        batch = await client.ended(batch["id"])
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert batch["error_file_id"] is None and batch["errors"] is None
        assert batch["metadata"] == {"이름": "첫째"}
        times = [batch[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
        assert times == sorted(times)
        found = await client.content(batch["output_file_id"])
        texts = {each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in found}
        assert texts == {"가": "답 가", "나": "답 나", "다": "답 다"}
        assert {each["response"]["status_code"] for each in found} == {200}
        assert not list((tmp_path / "home" / "batches").iterdir())
