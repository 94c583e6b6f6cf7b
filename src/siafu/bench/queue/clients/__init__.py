"""One file a queue, loaded by `drive.py` with the interpreter of the environment that the queue lives in.

Each has `worker(order, count)`, which does tasks until it is ended, and `submitting(order)`, an asynchronous context
that yields `submit(number)`; or `together(order, count)`, which is both in one process. A task begins with `count.task`
and sleeps for `order["ms"]`; `count.recorded` is called once its end is recorded.
"""
