"""What is served under which path: one record a route, by which requests are sorted and `/openapi.json` is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec

from siafu.service.refusals import Refused


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A method and a path, in which `{id}` stands for one part, `{model}` for all that is left, as names of models may
    hold slashes. name: the operation's. says: status -> the type of the JSON that is answered, str = a text, bytes =
    those of a file, None = no body. body: the type of the JSON that is sent, None = there is none. form: the type of
    the form that is sent instead. query: a Struct of the parameters that may be given. headers: names and types. id:
    the type of what stands for `{id}`. stream: whether a good answer may be text/event-stream, or always is. open: no
    key is needed.
    """

    method: str
    path: str
    name: str
    summary: str
    says: Mapping[int, Any]
    body: Any = None
    form: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    headers: Mapping[str, Any] = {}
    id: Any = str
    stream: Literal["", "may", "only"] = ""
    open: bool = False

    @property
    def scope(self) -> str:
        """What a client key needs for it, of `store.client_keys.SCOPES`."""
        if self.method == "GET":
            return "read"
        return "cancel" if self.method == "DELETE" or self.path.endswith("/cancel") else "submit"


def find(routes: Sequence[Route], method: str, path: str) -> tuple[Route, str]:
    """The route of a request, and what stands for the name in braces in its path.

    Raises: Refused for a path that is not served: says what is, and which one was probably meant.
    """
    allowed = []
    for route in routes:
        if found := pattern(route.path).fullmatch(path):
            if route.method == method:
                return route, found[1] if found.groups() else ""
            allowed.append(route.method)
    if allowed:
        methods = ", ".join(sorted(allowed))
        message = f"{path[:100]} takes {methods.replace(', ', ' or ')}, not {method[:20]}"
        refused = Refused(405, message, code="method_not_allowed", again=False)
        refused.allow = methods
        raise refused
    known = list(dict.fromkeys(route.path for route in routes))
    tail = "/" + path.strip("/").removeprefix("v1/")
    near = next((name for name in known if name.endswith(tail) and tail != "/"), None)
    hint = f"did you mean {near}? A client's base URL ends with /v1." if near else f"It serves {', '.join(known)}."
    raise Refused(404, f"there is no {method[:20]} {path[:100]} here. {hint}", code="unknown_url", again=False)


@lru_cache(256)
def pattern(path: str) -> re.Pattern[str]:
    """What a request's path looks like for the path of a route."""
    return re.compile(re.escape(path).replace(r"\{id\}", "([^/]+)").replace(r"\{model\}", "(.+)"))
