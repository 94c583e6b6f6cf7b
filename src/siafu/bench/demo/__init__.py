"""`siafu demo`: the usual glue and siafu do the same work on the same simulated endpoint, and each is killed half-way.

::

    demo.py      the whole show           phases.py  one program: run, kill -9, run again
    servers.py   endpoint and shop        place.py   the folder of a demo, and what is written into it
    seen.py      what the endpoint saw    notes.py   what a program wrote down itself
    account.py   the judgement, pure      summary.py siafu's own numbers, pure
    glue.py      the other program        real.py, local.py  `--local`: a real model instead

Both programs are judged from the records of the endpoint and of the shop; what a program says about itself is used
for one question only: how much of what it spent it can explain.
"""
