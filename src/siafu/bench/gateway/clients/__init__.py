"""The clients that are compared. Each is a file that `drive.py` loads: `connect(base_url, body, agents, folder)` opens
it and yields `call(number) -> the answer's text`, which sends `body` once.
"""
