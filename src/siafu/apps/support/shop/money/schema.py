"""The tables of the money layer. Every rule that money rests on is a constraint here, not a habit of the code."""

from __future__ import annotations

from siafu.store.append_only import append_only

SCHEMA = "shop_money"

# One entry a version, never edited once released.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE payment (
            tenant_id TEXT NOT NULL, payment_id TEXT NOT NULL, order_id TEXT NOT NULL, owner_sub TEXT NOT NULL,
            psp_payment_ref TEXT NOT NULL, currency TEXT NOT NULL CHECK (length(currency) = 3),
            captured_minor {integer} NOT NULL CHECK (captured_minor >= 0),
            refunded_minor {integer} NOT NULL DEFAULT 0 CHECK (refunded_minor >= 0),
            reserved_minor {integer} NOT NULL DEFAULT 0 CHECK (reserved_minor >= 0),
            CONSTRAINT never_more_than_was_paid CHECK (refunded_minor + reserved_minor <= captured_minor),
            PRIMARY KEY (tenant_id, payment_id), UNIQUE (tenant_id, order_id)
        ) {strict}""",
        # asked: what a bare client asks for, '' with a key of its own.
        """CREATE TABLE refund_intent (
            refund_id TEXT PRIMARY KEY, tenant_id TEXT NOT NULL,
            idem_key TEXT NOT NULL CHECK (length(idem_key) BETWEEN 20 AND 255), asked TEXT NOT NULL,
            fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
            payment_id TEXT NOT NULL, order_id TEXT NOT NULL, psp_payment_ref TEXT NOT NULL,
            amount_minor {integer} NOT NULL CHECK (amount_minor > 0), currency TEXT NOT NULL,
            customer TEXT NOT NULL, actor TEXT NOT NULL, run TEXT NOT NULL, task TEXT NOT NULL, reason TEXT NOT NULL,
            approval_id TEXT,
            state TEXT NOT NULL CHECK (state IN ('pending_approval', 'reserved', 'dispatching', 'unknown',
                'manual_review', 'succeeded', 'declined', 'rejected', 'cancelled')),
            psp TEXT NOT NULL, psp_key TEXT NOT NULL, psp_refund_id TEXT,
            lease_owner TEXT, lease_epoch {integer} NOT NULL DEFAULT 0, lease_until {real},
            attempts {integer} NOT NULL DEFAULT 0, first_dispatch_at {real}, next_attempt_at {real},
            serialise {integer} NOT NULL CHECK (serialise IN (0, 1)),
            response TEXT, created_at {real} NOT NULL, updated_at {real} NOT NULL,
            UNIQUE (tenant_id, idem_key), UNIQUE (psp, psp_key),
            CONSTRAINT one_refund_a_psp_id UNIQUE (psp, psp_refund_id),
            CHECK ((state = 'succeeded') = (psp_refund_id IS NOT NULL)),
            FOREIGN KEY (tenant_id, payment_id) REFERENCES payment (tenant_id, payment_id)
        ) {strict}""",
        # Where the provider cannot tell a repetition, a payment has one refund in flight at a time.
        """CREATE UNIQUE INDEX one_in_flight ON refund_intent (tenant_id, payment_id)
            WHERE serialise = 1 AND state IN ('dispatching', 'unknown')""",
        "CREATE INDEX refund_by_payment ON refund_intent (tenant_id, payment_id)",
        "CREATE INDEX refund_by_customer ON refund_intent (tenant_id, customer, created_at)",
        """CREATE INDEX refund_open ON refund_intent (created_at)
            WHERE state IN ('reserved', 'dispatching', 'unknown')""",
        # Intents are financial records: they stay, and so do their keys.
        """{sqlite} CREATE TRIGGER refund_intent_stays BEFORE DELETE ON refund_intent
            BEGIN SELECT RAISE(ABORT, 'refund intents are kept'); END""",
        """{postgresql} CREATE FUNCTION refund_intent_stays() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'refund intents are kept' USING ERRCODE = 'integrity_constraint_violation'; END $$""",
        """{postgresql} CREATE TRIGGER refund_intent_stays BEFORE DELETE ON refund_intent
            FOR EACH ROW EXECUTE FUNCTION refund_intent_stays()""",
        """{postgresql} CREATE TRIGGER refund_intent_not_emptied BEFORE TRUNCATE ON refund_intent
            EXECUTE FUNCTION refund_intent_stays()""",
        """CREATE TABLE refund_event (
            refund_id TEXT NOT NULL REFERENCES refund_intent (refund_id), seq {integer} NOT NULL,
            epoch {integer} NOT NULL, kind TEXT NOT NULL, at {real} NOT NULL, data TEXT NOT NULL,
            PRIMARY KEY (refund_id, seq)
        ) {strict}""",
        *append_only("refund_event"),
        """CREATE TABLE approval (
            id TEXT PRIMARY KEY, refund_id TEXT NOT NULL UNIQUE REFERENCES refund_intent (refund_id),
            tool TEXT NOT NULL, arguments TEXT NOT NULL, arguments_sha256 TEXT NOT NULL,
            requester TEXT NOT NULL, actor TEXT NOT NULL, reason TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'expired', 'used')),
            created_at {real} NOT NULL, expires_at {real} NOT NULL,
            decided_by TEXT, decided_at {real}, note TEXT NOT NULL DEFAULT '',
            CHECK ((state IN ('approved', 'denied', 'used')) = (decided_by IS NOT NULL)),
            CHECK (decided_by IS NULL OR decided_by NOT IN (requester, actor))
        ) {strict}""",
        "CREATE INDEX approval_open ON approval (expires_at) WHERE state = 'pending'",
        # Locked while the rules look at a customer's other refunds, so that two requests at once see each other.
        """CREATE TABLE refund_gate (
            tenant_id TEXT NOT NULL, customer TEXT NOT NULL, PRIMARY KEY (tenant_id, customer)
        ) {strict}""",
    ),
    (
        # psp: the provider that it was sent to, '' = nothing was sent yet. What was sent to a provider before providers
        # were told apart keeps the name "payments", and waits for one that is given this name.
        "UPDATE refund_intent SET psp = '' WHERE attempts = 0 AND state IN ('pending_approval', 'reserved')",
        # An approval that was given may expire too, and still tells who gave it.
        """CREATE TABLE approval_2 (
            id TEXT PRIMARY KEY, refund_id TEXT NOT NULL UNIQUE REFERENCES refund_intent (refund_id),
            tool TEXT NOT NULL, arguments TEXT NOT NULL, arguments_sha256 TEXT NOT NULL,
            requester TEXT NOT NULL, actor TEXT NOT NULL, reason TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'expired', 'used')),
            created_at {real} NOT NULL, expires_at {real} NOT NULL,
            decided_by TEXT, decided_at {real}, note TEXT NOT NULL DEFAULT '',
            CHECK (state = 'expired' OR (state = 'pending') = (decided_by IS NULL)),
            CHECK (decided_by IS NULL OR decided_by NOT IN (requester, actor))
        ) {strict}""",
        """INSERT INTO approval_2 SELECT id, refund_id, tool, arguments, arguments_sha256, requester, actor, reason,
            state, created_at, expires_at, decided_by, decided_at, note FROM approval""",
        "DROP TABLE approval",
        "ALTER TABLE approval_2 RENAME TO approval",
        """CREATE INDEX refund_approved ON refund_intent (approval_id)
            WHERE approval_id IS NOT NULL AND state IN ('pending_approval', 'reserved')""",
    ),
)
