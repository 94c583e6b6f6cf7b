"""Conversations: what a customer wrote and what was answered, kept so that a later message can go on from there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from siafu.apps.support.requests import CustomerRequest, Turn
from siafu.border.text import clean, preview
from siafu.errors import InputError
from siafu.store.database import Database, Transaction

MAX_NAME = 200
MAX_TURNS, MAX_CHARACTERS = 20, 40_000  # of the newest earlier turns that a new message brings along

MIGRATIONS: Sequence[Sequence[str]] = (
    (
        "CREATE TABLE support_thread (thread TEXT PRIMARY KEY, customer TEXT NOT NULL) {strict}",
        """CREATE TABLE support_turn (
            request_id TEXT PRIMARY KEY,
            thread TEXT NOT NULL REFERENCES support_thread,
            seq {integer} NOT NULL,
            text TEXT NOT NULL,
            answer TEXT,
            outcome TEXT,
            asked_at {real} NOT NULL,
            answered_at {real},
            UNIQUE (thread, seq),
            CHECK ((answer IS NULL) = (outcome IS NULL))
        ) {strict}""",
    ),
)


class Threads:
    """Conversations in a database. Each belongs to the customer who began it."""

    def __init__(self, database: Database) -> None:
        """`database`: opened with MIGRATIONS; stays the caller's to close."""
        self._database = database

    async def ask(self, thread: str, request: CustomerRequest) -> CustomerRequest:
        """Keep what `request` says as the next message of `thread`; returns it with the messages before it and an id
        of its own. The same text again, while the last message has no answer yet, is that message, with its id.

        Raises: InputError when the thread is another customer's or its name cannot be used; StoreError.
        """
        name = clean(thread).strip()
        if not 0 < len(name) <= MAX_NAME:
            raise InputError(f"a thread has a name of 1 to {MAX_NAME} characters")
        return await self._database.run(lambda tx: _ask(tx, name, request))

    async def answered(self, request_id: str, answer: str, outcome: str) -> None:
        """Keep the answer to a message. Raises: StoreError."""
        sql = """UPDATE support_turn SET answer = :answer, outcome = :outcome, answered_at = {now}
                 WHERE request_id = :id AND answer IS NULL"""
        await self._database.run(lambda tx: tx.change(sql, id=request_id, answer=answer, outcome=outcome))


def _ask(tx: Transaction, thread: str, request: CustomerRequest) -> CustomerRequest:
    tx.change(
        "INSERT INTO support_thread (thread, customer) VALUES (:thread, :customer) ON CONFLICT DO NOTHING",
        thread=thread,
        customer=request.customer,
    )
    owner = tx.row("SELECT customer FROM support_thread WHERE thread = :thread {for_update}", thread=thread)
    if owner is None or owner["customer"] != request.customer:
        raise InputError(f"the thread {preview(thread, 60)!r} belongs to another customer; choose another name")
    newest = tx.rows(
        "SELECT request_id, seq, text, answer, outcome FROM support_turn WHERE thread = :thread "
        "ORDER BY seq DESC LIMIT :most",
        thread=thread,
        most=MAX_TURNS + 1,
    )
    if newest and newest[0]["answer"] is None and newest[0]["text"] == request.text:
        last, *newest = newest
        return msgspec.structs.replace(request, id=last["request_id"], earlier=_earlier(newest))
    id = f"ask-{uuid.uuid4()}"
    tx.change(
        "INSERT INTO support_turn (request_id, thread, seq, text, asked_at) VALUES (:id, :thread, :seq, :text, {now})",
        id=id,
        thread=thread,
        seq=newest[0]["seq"] + 1 if newest else 1,
        text=request.text,
    )
    return msgspec.structs.replace(request, id=id, earlier=_earlier(newest))


def _earlier(newest: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    return tuple(reversed(list(_within(newest))))


def _within(newest: Sequence[Mapping[str, Any]]) -> Iterator[Turn]:
    left = MAX_CHARACTERS
    for row in newest[:MAX_TURNS]:
        left -= len(row["text"]) + len(row["answer"] or "")
        if left < 0:
            return
        yield Turn(text=row["text"], answer=row["answer"], outcome=row["outcome"])
