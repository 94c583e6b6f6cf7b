"""Servers that speak TLS, with any certificate: `async with speaking_tls(certified(tmp_path, ...)) as port`."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Certified(NamedTuple):
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


def certified(folder: Path, *names: str, begins: float = -1, ends: float = 1) -> Certified:
    """A certificate signed by itself, for `names`, valid from `begins` to `ends` days from now."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in names if not each[0].isdigit()]
    alternatives += [x509.IPAddress(ipaddress.ip_address(each)) for each in names if each[0].isdigit()]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + begins * DAY)
        .not_valid_after(now + ends * DAY)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = Certified(folder / f"{names[0]}.pem", folder / f"{names[0]}.key")
    files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@asynccontextmanager
async def speaking_tls(
    files: Certified, answer: bytes = b"", newest: ssl.TLSVersion | None = None
) -> AsyncIterator[int]:
    """A server on a free port of 127.0.0.1 that gives `answer` to each request. newest: the newest version it knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    if newest is not None:
        context.minimum_version = context.maximum_version = newest
        context.set_ciphers("ALL:@SECLEVEL=0")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
