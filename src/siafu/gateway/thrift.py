"""A soft limit: once most of a budget is used, calls go to a cheaper model, so that the work gets to its end."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import msgspec

from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.endpoint import Endpoint, PlainReply, Reply, ToldReply
from siafu.observe.calls import CallContext
from siafu.observe.events import CheaperModel, Observer


class Thrift(msgspec.Struct, frozen=True, kw_only=True):
    """`soft`: the share of a budget, over 0 and at most 1, from which on it holds. `cheaper`: the model to take instead
    of each; models that are not in it stay.
    """

    soft: Decimal
    cheaper: Mapping[str, str]


class Thrifty:
    """The wrapper that chooses the cheaper model, once a call: its retries stay with it. Answers say which model they
    stand in for. The observer is told the first time in a run and for each model.
    """

    def __init__(self, inner: Endpoint, thrift: Thrift, accounts: Accounts, observer: Observer) -> None:
        self._inner = inner
        self._thrift = thrift
        self._accounts = accounts
        self._observer = observer
        self._told: set[tuple[str, str]] = set()

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        asked = request.model
        instead = self._thrift.cheaper.get(asked)
        if instead is None or not self._accounts.pressed(
            context.run, self._thrift.soft, task=context.task, agent=context.agent, role=context.role
        ):
            return await self._inner.open(request, context)
        if (context.run, asked) not in self._told:
            self._told.add((context.run, asked))
            self._observer(CheaperModel(run=context.run, task=context.task, model=asked, instead=instead))

        def marked(answer: ChatAnswer) -> ChatAnswer:
            return msgspec.structs.replace(answer, instead_of=asked)

        reply = await self._inner.open(msgspec.structs.replace(request, model=instead), context)
        if isinstance(reply, PlainReply):
            return PlainReply(marked(reply.answer), reply.head, reply.seconds)
        return ToldReply(reply, marked)
