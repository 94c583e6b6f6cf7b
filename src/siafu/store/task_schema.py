"""The tables of work items, on SQLite and PostgreSQL. Steps are only ever added.

The partial indexes keep every question that is asked all the time (what is next, what has lapsed, what is due) to the
rows that it is about, however many have ended.

What happens to tasks is noted by the database itself (`task_event`), so whoever changes a task, and however, nothing
stays untold. On SQLite, which commits in one line, the numbers of events are their places in that line. On PostgreSQL
a number that was drawn early may be committed late, and a reader that has gone past it would never see it: so
`task_events` gives out the places there, once an event is committed (`place`, and the counter `task_event_last`).
"""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

from collections.abc import Iterator

_TASK = """
CREATE TABLE task (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    run TEXT NOT NULL,
    tenant TEXT NOT NULL,
    customer TEXT NOT NULL,
    once TEXT,
    payload TEXT NOT NULL,
    print TEXT NOT NULL,
    priority {integer} NOT NULL CHECK (priority BETWEEN 1 AND 3),
    turn {integer} NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('blocked', 'ready', 'leased', 'waiting', 'succeeded', 'failed', 'cancelled',
        'expired', 'dead_letter')),
    deps_left {integer} NOT NULL CHECK (deps_left >= 0),
    created_at {real} NOT NULL,
    ready_at {real} NOT NULL,
    deadline_at {real},
    deliveries {integer} NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
    lapses {integer} NOT NULL DEFAULT 0,
    lease_epoch {integer} NOT NULL DEFAULT 0 CHECK (lease_epoch >= 0),
    lease_until {real},
    worker TEXT NOT NULL DEFAULT '',
    fenced {integer} NOT NULL DEFAULT 0,
    cancel_requested {integer} NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    waits_since {real},
    waits_for TEXT NOT NULL DEFAULT '',
    code TEXT NOT NULL DEFAULT '',
    message TEXT NOT NULL DEFAULT '',
    result TEXT,
    ended_at {real},
    UNIQUE (tenant, once),
    CHECK ((state = 'leased') = (lease_until IS NOT NULL)),
    CHECK ((state = 'blocked') = (deps_left > 0)),
    CHECK ((state IN ('succeeded', 'failed', 'cancelled', 'expired', 'dead_letter')) = (ended_at IS NOT NULL)),
    CHECK (state <> 'succeeded' OR result IS NOT NULL)
) {strict}
"""
_NOTED = (
    "INSERT INTO task_event (task, what, at, code, epoch) VALUES (NEW.id, {what}, {{now}}, NEW.code, NEW.lease_epoch)"
)
_WHEN = {  # what an event says -> when it is noted
    "'accepted'": "AFTER INSERT ON task FOR EACH ROW",
    # a worker that looks whether a task must wait still is no news, and would be a row every few minutes
    "NEW.state": "AFTER UPDATE OF state ON task FOR EACH ROW WHEN (OLD.state <> NEW.state AND NOT (OLD.waits_for <> '' "
    "AND OLD.waits_for = NEW.waits_for AND NEW.ended_at IS NULL))",
    "'cancel_requested'": "AFTER UPDATE OF cancel_requested ON task FOR EACH ROW "
    "WHEN (OLD.cancel_requested < NEW.cancel_requested)",
}
# The name that a task was submitted with, out of its key (task_records.task_key), by the name of the database.
NAME_IN_KEY = {
    "sqlite": "substr(once, instr(once, '/') + 1, instr(once || char(31), char(31)) - instr(once, '/') - 1)",
    "postgresql": "split_part(substr(once, strpos(once, '/') + 1), chr(31), 1)",
}
_TOLD = "task, what, at, code, epoch"


def _triggers() -> Iterator[str]:
    for n, (what, when) in enumerate(_WHEN.items()):
        noted = _NOTED.format(what=what)
        yield f"{{sqlite}} CREATE TRIGGER task_event_{n} {when} BEGIN {noted}; END"
        yield (
            f"{{postgresql}} CREATE FUNCTION task_event_{n}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {noted}; RETURN NULL; END $$"
        )
        yield f"{{postgresql}} CREATE TRIGGER task_event_{n} {when} EXECUTE FUNCTION task_event_{n}()"


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        _TASK,
        "CREATE INDEX task_next ON task (kind, priority, turn, created_at) WHERE state = 'ready' AND lapses < 2",
        "CREATE INDEX task_oldest ON task (kind, ready_at) WHERE state = 'ready' AND lapses < 2",
        "CREATE INDEX task_suspect ON task (kind, priority, turn, created_at) WHERE state = 'ready' AND lapses >= 2",
        "CREATE INDEX task_leased ON task (kind, priority, turn) WHERE state = 'leased'",
        "CREATE INDEX task_lapses ON task (lease_until) WHERE state = 'leased'",
        "CREATE INDEX task_due ON task (ready_at) WHERE state = 'waiting'",
        "CREATE INDEX task_expires ON task (deadline_at) WHERE ended_at IS NULL AND deadline_at IS NOT NULL",
        "CREATE INDEX task_to_cancel ON task (worker) WHERE cancel_requested = 1 AND state = 'leased'",
        "CREATE INDEX task_open ON task (created_at, id) WHERE ended_at IS NULL",
        "CREATE INDEX task_ended ON task (ended_at, id) WHERE ended_at IS NOT NULL",
        "CREATE INDEX task_of_run ON task (run, created_at, id)",
        "CREATE INDEX task_of_customer ON task (customer, tenant)",
        # Who was given the last turn of a kind and priority; see task_records.
        "CREATE TABLE task_turn (kind TEXT NOT NULL, priority {integer} NOT NULL, tenant TEXT NOT NULL, "
        "last {integer} NOT NULL, PRIMARY KEY (kind, priority, tenant)) {strict}",
        "CREATE INDEX task_turn_last ON task_turn (kind, priority, last)",
        # `task` can begin once `needs` has succeeded.
        "CREATE TABLE task_need (needs TEXT NOT NULL REFERENCES task ON DELETE CASCADE, "
        "task TEXT NOT NULL REFERENCES task ON DELETE CASCADE, PRIMARY KEY (needs, task)) {strict}",
        "CREATE INDEX task_needed_by ON task_need (task)",
        # What has been decided within a task: a JournalEntry a row.
        "CREATE TABLE task_journal (task TEXT NOT NULL REFERENCES task ON DELETE CASCADE, path TEXT NOT NULL, "
        "seq {integer} NOT NULL, kind TEXT NOT NULL, fingerprint TEXT NOT NULL, outcome {bytes} NOT NULL, "
        "usd_pico {integer}, PRIMARY KEY (task, path, seq)) {strict}",
    ),
    (
        # Who works: a row lives as long as its worker says so (store/workers.py). skew: seconds by which its host's
        # clock is ahead of the database's.
        "CREATE TABLE worker (name TEXT PRIMARY KEY, host TEXT NOT NULL, pid {integer} NOT NULL, "
        "version TEXT NOT NULL, slots {integer} NOT NULL, least {integer} NOT NULL, most {integer} NOT NULL, "
        "draining {integer} NOT NULL, began_at {real} NOT NULL, seen_at {real} NOT NULL, skew {real} NOT NULL) "
        "{strict}",
        "CREATE INDEX task_dead ON task (created_at, id) WHERE state = 'dead_letter'",
    ),
    (
        # What these tasks are called elsewhere, where several databases meet (in a Redis). One row.
        "CREATE TABLE task_place (id TEXT PRIMARY KEY) {strict}",
        "{sqlite} INSERT INTO task_place (id) VALUES (lower(hex(randomblob(16))))",
        "{postgresql} INSERT INTO task_place (id) "
        "VALUES (md5(CAST(random() AS TEXT) || CAST(clock_timestamp() AS TEXT)))",
    ),
    (
        # The traceparent of who submitted it, empty = nobody traced it.
        "ALTER TABLE task ADD COLUMN trace TEXT NOT NULL DEFAULT ''",
    ),
    (
        "CREATE INDEX task_of_tenant ON task (tenant, created_at, id)",
        # What happened to tasks: `accepted`, `cancel_requested`, or the state that one got into.
        "CREATE TABLE task_event (id {serial}, task TEXT NOT NULL REFERENCES task ON DELETE CASCADE, "
        "what TEXT NOT NULL, at {real} NOT NULL, code TEXT NOT NULL, epoch {integer} NOT NULL) {strict}",
        "CREATE INDEX task_event_of ON task_event (task)",
        *_triggers(),
        f"{{sqlite}} CREATE VIEW task_told AS SELECT id AS place, {_TOLD} FROM task_event",
        "{postgresql} ALTER TABLE task_event ADD COLUMN place BIGINT UNIQUE",
        "{postgresql} CREATE INDEX task_event_new ON task_event (id) WHERE place IS NULL",
        "{postgresql} CREATE TABLE task_event_last (place BIGINT NOT NULL)",
        "{postgresql} INSERT INTO task_event_last (place) VALUES (0)",
        f"{{postgresql}} CREATE VIEW task_told AS SELECT place, {_TOLD} FROM task_event WHERE place IS NOT NULL",
        # How far a webhook has been told, and what it has still to be told.
        "CREATE TABLE webhook (name TEXT PRIMARY KEY, place {integer} NOT NULL) {strict}",
        "CREATE TABLE webhook_delivery (id TEXT PRIMARY KEY, webhook TEXT NOT NULL, place {integer} NOT NULL, "
        "task TEXT NOT NULL REFERENCES task ON DELETE CASCADE, what TEXT NOT NULL, at {real} NOT NULL, "
        "code TEXT NOT NULL, attempts {integer} NOT NULL DEFAULT 0, next_at {real}, said TEXT NOT NULL DEFAULT '', "
        "UNIQUE (webhook, place)) {strict}",
        "CREATE INDEX webhook_delivery_due ON webhook_delivery (webhook, next_at) WHERE next_at IS NOT NULL",
        "CREATE INDEX webhook_delivery_of ON webhook_delivery (task)",
    ),
    (
        # When a webhook has taken it, NULL = not yet; and the status of its last answer, NULL = there was none.
        "ALTER TABLE webhook_delivery ADD COLUMN told_at {real}",
        "ALTER TABLE webhook_delivery ADD COLUMN status {integer}",
        # People name tasks so, whatever run and customer they are of.
        *(
            f"{{{name}}} CREATE INDEX task_named ON task (({text})) WHERE once IS NOT NULL"
            for name, text in NAME_IN_KEY.items()
        ),
    ),
)
