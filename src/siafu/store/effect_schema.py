"""The tables of the effect contract, on SQLite and PostgreSQL. Steps are only ever added."""

from __future__ import annotations

from siafu.store.append_only import append_only

_EFFECT = """
CREATE TABLE effect (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    tool TEXT NOT NULL,
    tenant TEXT NOT NULL,
    customer TEXT NOT NULL,
    run TEXT NOT NULL,
    task TEXT NOT NULL,
    step TEXT NOT NULL,
    agent TEXT NOT NULL,
    role TEXT NOT NULL,
    arguments TEXT NOT NULL,
    arguments_sha256 TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'pending_approval', 'dispatching', 'unknown', 'waiting', 'succeeded',
        'refused', 'denied', 'manual_review')),
    epoch {integer} NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    owner TEXT,
    lease_until {real},
    attempts {integer} NOT NULL DEFAULT 0,
    amount {integer} CHECK (amount >= 0),
    day {integer},
    first_sent_at {real},
    result TEXT,
    approval_id TEXT,
    created_at {real} NOT NULL,
    updated_at {real} NOT NULL,
    CHECK ((state = 'dispatching') = (lease_until IS NOT NULL)),
    CHECK (state <> 'succeeded' OR result IS NOT NULL),
    CHECK (state NOT IN ('dispatching', 'unknown', 'waiting', 'succeeded', 'manual_review') OR day IS NOT NULL)
) {strict}
"""
_APPROVAL = """
CREATE TABLE effect_approval (
    id TEXT PRIMARY KEY,
    effect TEXT NOT NULL REFERENCES effect,
    tool TEXT NOT NULL,
    arguments TEXT NOT NULL,
    arguments_sha256 TEXT NOT NULL,
    requester TEXT NOT NULL,
    reason TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'expired', 'used')),
    created_at {real} NOT NULL,
    expires_at {real} NOT NULL,
    decided_by TEXT,
    decided_at {real},
    note TEXT NOT NULL DEFAULT '',
    CHECK (decided_by IS NULL OR decided_by <> requester)
) {strict}
"""
_AUDIT = """
CREATE TABLE effect_audit (
    id {serial},
    at {real} NOT NULL,
    kind TEXT NOT NULL,
    effect TEXT NOT NULL,
    tool TEXT NOT NULL,
    epoch {integer} NOT NULL,
    tenant TEXT NOT NULL,
    customer TEXT NOT NULL,
    run TEXT NOT NULL,
    task TEXT NOT NULL,
    step TEXT NOT NULL,
    role TEXT NOT NULL,
    arguments_sha256 TEXT NOT NULL,
    approval_id TEXT NOT NULL,
    actor TEXT NOT NULL,
    data TEXT NOT NULL
) {strict}
"""
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        _EFFECT,
        "CREATE INDEX effect_by_state ON effect (state, updated_at)",
        _APPROVAL,
        "CREATE UNIQUE INDEX one_approval ON effect_approval (effect) WHERE state IN ('pending', 'approved')",
        _AUDIT,
        "CREATE INDEX effect_audit_of ON effect_audit (effect)",
        *append_only("effect_audit"),
        # What one day (since 1970) has seen of a tool, for one tenant.
        "CREATE TABLE effect_day (tool TEXT NOT NULL, tenant TEXT NOT NULL, day {integer} NOT NULL, "
        "calls {integer} NOT NULL DEFAULT 0 CHECK (calls >= 0), total {integer} NOT NULL DEFAULT 0 CHECK (total >= 0), "
        "PRIMARY KEY (tool, tenant, day)) {strict}",
        # An empty tool or tenant means every one.
        "CREATE TABLE effect_switch (tool TEXT NOT NULL, tenant TEXT NOT NULL, person TEXT NOT NULL, "
        "reason TEXT NOT NULL, at {real} NOT NULL, PRIMARY KEY (tool, tenant)) {strict}",
        # definition: what may act; offered: another one that the server has come up with since.
        "CREATE TABLE effect_tool (tool TEXT PRIMARY KEY, definition TEXT NOT NULL, person TEXT NOT NULL, "
        "at {real} NOT NULL, offered TEXT) {strict}",
    ),
)
