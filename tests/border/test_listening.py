"""Sockets that others connect to."""

from __future__ import annotations

import socket

from siafu.border.listening import bind


def test_what_is_accepted_sends_small_pieces_at_once() -> None:
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with socket.create_server(("127.0.0.1", 0)) as usual, socket.create_connection(usual.getsockname()):
        accepted, _ = usual.accept()
        with accepted:
            assert not accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
