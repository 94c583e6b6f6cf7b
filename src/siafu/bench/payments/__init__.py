"""A simulated payment provider over a real socket: where refunds are paid, so that it can be counted what was paid.

It pays whatever it is told, like a bank transfer: it knows no captured sums, so only the caller's own care keeps a
refund from being paid twice, too much or to the wrong order. Money is an integer in minor units. Nothing here is
shared with siafu but `siafu.errors` and the plumbing of the other simulator.

::

    lines.py    what a request is, and what the ledger says about it
    book.py     the ledger in memory: everything follows from its lines, so a restart knows what was known before
    ledger.py   the ledger on disk: appended, synced before an answer, repaired after a kill
    faults.py   which request goes wrong, and how
    bank.py     the API under /v1/
    control.py  what happened, and what shall go wrong next, under /_payments/
"""
