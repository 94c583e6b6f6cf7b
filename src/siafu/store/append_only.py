"""Tables whose rows can only be added."""

from __future__ import annotations


def append_only(table: str) -> tuple[str, ...]:
    """Statements for a migration, after which the rows of `table` can be neither changed nor removed: a Conflict."""
    return (
        *(
            f"{{sqlite}} CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            for verb in ("UPDATE", "DELETE")
        ),
        f"{{postgresql}} CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION '{table} is append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        f"{{postgresql}} CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {table}_append_only()",
        f"{{postgresql}} CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
        f"EXECUTE FUNCTION {table}_append_only()",
    )
