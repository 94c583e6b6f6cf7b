"""The limiter's policies beside each other, in virtual time.

world.py     upstreams with limits, and a crowd that calls them    report.py   scenarios, measures, rows
live.py      the same on a real model server
"""
