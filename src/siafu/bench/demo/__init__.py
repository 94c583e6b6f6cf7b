"""`siafu demo`: the usual glue and siafu do the same work on the same simulated endpoint, and each is killed half-way.

::

    demo.py      the whole show            phases.py   one program: run, kill -9, run again
    servers.py   endpoint, shop, payments  leash.py    ends a process with its parent
    place.py     the folder of a demo      refund_requests.py   who asks for a refund, and what is due
    seen.py      what the endpoint saw     notes.py    what a program wrote down itself
    account.py   the judgement, pure       payouts.py  what was paid back, and what was due
    summary.py   siafu's own numbers       glue.py     the other program
    real.py, local.py   `--local`: a real model instead

Both programs are judged from the records of the endpoint, the shop and the payment provider; what a program says about
itself is used for one question only: how much of what it spent it can explain.
"""
