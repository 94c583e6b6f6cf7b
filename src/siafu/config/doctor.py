"""Checks of what siafu needs: each looks at one thing and says in a row what it found and what to do."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from siafu.apps.support.routes import ROLES
from siafu.border.money import show_usd
from siafu.border.secrets import redact
from siafu.border.text import preview
from siafu.config.advice import Row, advice
from siafu.config.assembly import House, Plan, opened
from siafu.config.checking import risks, strange_roles
from siafu.config.reaching import wanted_models
from siafu.config.settings import Given, Settings
from siafu.config.shown import shown
from siafu.errors import ConfigError, SiafuError
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.observe.calls import CallContext
from siafu.tools.toolset import ToolSet

CALL_SECONDS = 60.0
ALL_DEFAULTS = "all defaults: no file, SIAFU_* or OPENAI_* changes one"
ENOUGH, LITTLE = 10**9, 10**8  # bytes of free disk
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs"}


def python_row() -> Row:
    """The interpreter; siafu itself refuses to be installed in one that is too old."""
    return Row(check="python", state="ok", found=f"{platform.python_version()} at {sys.executable}")


def settings_rows(values: Sequence[Given], environ: Mapping[str, str] | None = None) -> list[Row]:
    """Each value that counts, and where it came from. Nothing that could be a secret is shown. environ: its SIAFU_*
    are named when no setting is given.
    """
    winners = {each.name: each for each in values if each.value != {}}  # an empty table sets nothing
    if not winners:
        others = ", ".join(sorted(name for name in environ or () if name.startswith("SIAFU_")))
        found = f"defaults; set beside them: {preview(others, 200)}" if others else ALL_DEFAULTS
        return [Row(check="settings", state="ok", found=found)]
    return [
        Row(check=name, state="ok", found=f"{preview(str(shown(each)), 60)}  (from {each.source})")
        for name, each in sorted(winners.items())
    ]


def risk_rows(settings: Settings) -> list[Row]:
    """What works and still is not safe. Raises: ConfigError."""
    told = [("in clear text", text) for text in risks(settings)]
    told += [("roles", text) for text in strange_roles(settings, ROLES)]
    parts = ((check, *text.rpartition(": ")) for check, text in told)
    return [Row(check=check, state="warn", found=found, advice=advice) for check, found, _, advice in parts]


def state_rows(home: Path) -> list[Row]:
    """The folder for journals: can it be written, has it room, and is it on a disk of this machine? Makes nothing."""
    place = home.absolute()
    while not place.exists():
        place = place.parent
    check = "state folder"
    try:
        if not place.is_dir():
            raise NotADirectoryError(20, f"{place} is a file")
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"siafu")
        free = shutil.disk_usage(place).free
    except OSError as error:
        why = f"{home} cannot be written: {error.strerror or error}"
        return [Row(check=check, state="fail", found=why, advice="set SIAFU_HOME to a folder of yours")]
    rows = [Row(check=check, state="ok", found=f"{home} can be written")]
    kind = file_system(place, _mounts())
    if kind in _NETWORK:
        away = "journals need a disk of this machine: set SIAFU_HOME to a folder on one"
        rows.append(Row(check=check, state="fail", found=f"{home} is on a network file system ({kind})", advice=away))
    state: Literal["ok", "warn", "fail"] = "ok" if free >= ENOUGH else "warn" if free >= LITTLE else "fail"
    more = "" if state == "ok" else "make room: a run stops when its journal cannot be written"
    return [*rows, Row(check="disk", state=state, found=f"{free / 10**9:,.1f} GB free", advice=more)]


def file_system(place: Path, mounts: str) -> str:
    """The type of the file system that holds `place` by the text of /proc/self/mounts; empty when it does not tell."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        where = fields[1].replace("\\040", " ") if len(fields) > 2 else ""
        if where and len(where) >= len(best) and place.is_relative_to(where):
            best, kind = where, fields[2]
    return kind


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not on this system
        return ""


async def call_rows(settings: Settings) -> list[Row]:
    """One tiny completion of each model that would be asked, through the whole gateway. Costs a fraction of a cent."""
    try:
        wanted = wanted_models(settings)
        async with opened(settings, Plan(run="doctor", served=True)) as house:
            return [await _call_row(house, model) for model in wanted]
    except ConfigError as error:
        return [Row(check="call", state="fail", found=error.message)]


async def _call_row(house: House, model: str) -> Row:
    clock = house.around.clock
    request = ChatRequest(
        model=model, messages=[{"role": "user", "content": "Answer with the word: pong"}], max_tokens=16
    )
    began = clock.now()
    context = CallContext(run="doctor", task="doctor", deadline=began + CALL_SECONDS)
    try:
        reply = await house.around.endpoint.open(request, context)
        answer = await reply.message()
    except SiafuError as error:
        more = "" if house.upstream is None else advice(error, house.upstream.base_url, house.upstream.key)
        return Row(check=f"call {model}", state="fail", found=error.message, advice=more)
    return _answered(model, answer, clock.now() - began)


def _answered(model: str, answer: ChatAnswer, seconds: float) -> Row:
    usage = answer.usage
    found = f"answered in {seconds:,.2f} s"
    if answer.model and answer.model != model:
        found += f" by {preview(answer.model, 60)}"
    if usage is None:
        more = "it does not say how many tokens it used: under a budget each call counts at its maximum"
        return Row(check=f"call {model}", state="warn", found=f"{found}; usage unknown", advice=more)
    found += f"; {usage.input} + {usage.output} tokens ({usage.cached} cached, {usage.reasoning} reasoning)"
    if answer.usd_pico is None:
        more = f'no price is known, so a budget refuses it: set [prices."{model}"] in siafu.toml'
        return Row(check=f"call {model}", state="warn", found=f"{found}; price unknown", advice=more)
    return Row(check=f"call {model}", state="ok", found=f"{found}; {show_usd(answer.usd_pico)} by list price")


async def tools_row(name: str, tools: ToolSet, rules: Iterable[str] = ()) -> Row:
    """Whether an MCP server starts and lists its tools, among them those that `rules` name by `server.tool`. A failure
    tells the last words on its stderr.
    """
    check = f"tools {name}"
    try:
        listed = await tools.list()
    except SiafuError as error:
        more = "run its command by hand, or start what its url leads to, or correct mcp_servers in siafu.toml"
        return Row(check=check, state="fail", found=redact(error.message), advice=more)
    there = [f"{name}.{tool.name}" for tool in listed]
    for rule in sorted(set(rules) - set(there)):
        near = get_close_matches(rule, there, n=1)
        found = f"there is a rule for the effects of {rule}, and the server has no such tool"
        more = f"did you mean {near[0]}?" if near else f"it has: {', '.join(there) or 'none'}"
        return Row(check=check, state="fail", found=preview(found, 200), advice=preview(more, 200))
    names = ", ".join(tool.name for tool in listed)
    return Row(check=check, state="ok", found=preview(f"{len(listed)} tools: {names}", 200))


def ended_well(rows: Sequence[Row]) -> bool:
    """True unless something failed."""
    return all(row.state != "fail" for row in rows)
