"""The support swarm as a work function: classify, then answer on the route, without waiting for anybody else."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from siafu.agents.agent import Agent, AgentLimits
from siafu.agents.steps import FinalStep, Step, ToolStep
from siafu.agents.task import TaskContext
from siafu.apps.support import classify
from siafu.apps.support.requests import Answer, CustomerRequest, Outcome
from siafu.apps.support.routes import ROUTES, Route, Tier, instructions, tier
from siafu.border.canonical import fingerprint
from siafu.border.identity import mint
from siafu.border.secrets import Secret
from siafu.tools.filtered import Filtered

AUDIENCE = "siafu-shop"
LIMITS = AgentLimits(steps=6, tool_calls=8, tokens=60_000, result_chars=6_000)

StepListener = Callable[[str, Step | classify.Ticket], None]


class Support(msgspec.Struct, frozen=True, kw_only=True):
    """`work` for `siafu.map` over CustomerRequests; the value of each item is an `Answer`.

    models: the model behind each tier; the strong one classifies. identity_key: proves the customer to the shop's
    tools; None = the tool server knows its customer by other means. on_step: told of every step (request id, step).
    """

    models: dict[Tier, str]
    identity_key: Secret | None = None
    on_step: StepListener | None = None

    def fingerprint(self) -> str:
        """Changes when a prompt, a route, a schema, a limit or a model changes."""
        return fingerprint([classify.INSTRUCTIONS, classify.SCHEMA, ROUTES, LIMITS, self.models])

    def agent(self, category: str, chosen: Tier) -> Agent:
        """The agent that answers a category: constant instructions, only its role's tools."""
        route = ROUTES[category]
        return Agent(
            name=route.role,
            role=route.role,
            instructions=instructions(route),
            model=self.models[chosen],
            tools=route.tools,
            limits=LIMITS,
            temperature=0.3,
            max_tokens=512,
        )

    async def work(self, item: CustomerRequest, ctx: TaskContext) -> Answer:
        """Answer one request.

        Raises: ModelError, AgentStopped, BudgetReached, DeadlineReached. Cancelling gives up the call in flight.
        """
        sorter = ctx.child("classify", role="classify")
        ticket = await classify.classify(sorter, item.text, self.models["strong"])
        if self.on_step is not None:
            self.on_step(item.id, ticket)
        route = ROUTES[ticket.category]
        chosen = tier(route, ticket.hint)
        if ctx.tools is None:
            raise TypeError("the support swarm needs the shop's tools")
        desk = ctx.child(
            "desk",
            role=route.role,
            tools=Filtered(ctx.tools, route.tools),
            identity=self._identity(item, ctx, route),
        )
        worked = False
        codes: set[str] = set()
        final: FinalStep | None = None
        async for step in self.agent(ticket.category, chosen).run(desk, item.text):
            if self.on_step is not None:
                self.on_step(item.id, step)
            if isinstance(step, ToolStep):
                worked = worked or not step.result.is_error
                codes.add(step.result.code)
            elif isinstance(step, FinalStep):
                final = step
        if final is None:
            raise RuntimeError("an agent ended without a final step")
        return Answer(
            outcome=outcome(route, worked=worked, codes=codes),
            category=ticket.category,
            priority=ticket.priority,
            answer=final.text,
            model_used=self.models[chosen],
            steps=final.steps,
            tool_calls=final.tool_calls,
            flagged="classification_default" if ticket.flagged else final.flagged,
        )

    def _identity(self, item: CustomerRequest, ctx: TaskContext, route: Route) -> str | None:
        if self.identity_key is None:
            return None
        return mint(
            self.identity_key,
            subject=item.customer,
            audience=AUDIENCE,
            scopes=route.tools,
            run=ctx.call.run,
            request=item.id,
            now=time.time(),
        )


def outcome(route: Route, *, worked: bool, codes: set[str]) -> Outcome:
    """What became of an answered request, judged by what the tools did, never by the wording of the answer.

    `worked`: a tool call succeeded. `codes`: the machine-readable codes of all results.
    """
    if worked:
        return "answered"
    if any(code.endswith("_not_found") for code in codes) or (route.looks_up and not codes):
        return "needs_info"
    return "unknown" if codes - {""} else "answered"
