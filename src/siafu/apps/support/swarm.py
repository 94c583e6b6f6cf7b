"""The support swarm as a work function: classify, then answer on the route, without waiting for anybody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from siafu.agents.agent import Agent, AgentLimits
from siafu.agents.steps import FinalStep, ModelStep, Step, ToolStep
from siafu.agents.task import TaskContext
from siafu.apps.support import classify
from siafu.apps.support.bound import Bound
from siafu.apps.support.grants import named
from siafu.apps.support.letter import letter
from siafu.apps.support.outcome import out_of_reach, outcome, refunded, refunds
from siafu.apps.support.requests import Answer, CustomerRequest
from siafu.apps.support.routes import HAND_OVER, ROUTES, Tier, instructions, tier
from siafu.apps.support.signed import Signed
from siafu.border.canonical import fingerprint
from siafu.border.secrets import Secret
from siafu.border.text import preview
from siafu.errors import AgentStopped, ConfigError, ToolFault, ToolUnavailable
from siafu.tools.filtered import Filtered
from siafu.tools.toolset import ToolSet

LIMITS = AgentLimits(steps=6, tool_calls=8, tokens=60_000, result_chars=6_000)
MAX_TOKENS = 1_000
MAX_SUMMARY = 4_000  # characters of a request that is handed over

StepListener = Callable[[str, Step | classify.Ticket], None]


def nobody(request: str, step: Step | classify.Ticket) -> None:
    """Listens to nothing."""


class Support(msgspec.Struct, frozen=True, kw_only=True):
    """`work` for `siafu.map` over CustomerRequests; the value of each item is an `Answer`.

    models: the model behind each tier; the strong one classifies. identity_key: proves the customer to the shop's
    tools; None = the tool server knows its customer by other means. on_step: told of every step (request id, step).
    """

    models: dict[Tier, str]
    identity_key: Secret | None = None
    on_step: StepListener = nobody

    def fingerprint(self) -> str:
        """Changes when a prompt, a route, a schema, a limit or a model changes."""
        agents = [self.agent(category, t).fingerprint() for category, route in ROUTES.items() for t in route.tiers]
        return fingerprint([classify.INSTRUCTIONS, classify.SCHEMA, self.models["strong"], agents])

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
            max_tokens=MAX_TOKENS,
        )

    async def check(self, tools: ToolSet) -> None:
        """See that `tools` has what the routes need, before anything is paid for.

        Raises: ConfigError naming what is missing; ToolUnavailable when a tool server cannot be reached.
        """
        there = {tool.name for tool in await tools.list()}
        if missing := sorted({name for route in ROUTES.values() for name in route.scopes} - there):
            raise ConfigError(
                f"the support swarm needs the tools {', '.join(missing)}, which no MCP server in the settings has; "
                f"there are: {', '.join(sorted(there)) or 'none'}"
            )

    async def work(self, item: CustomerRequest, ctx: TaskContext) -> Answer:
        """Answer one request.

        Raises: ModelError, AgentStopped, BudgetReached, DeadlineReached; ToolUnavailable when nothing could be looked
        up, as the tools could not be reached. Cancelling gives up the call in flight.
        """
        tools = ctx.tools
        if tools is None:
            raise TypeError("the support swarm needs the shop's tools")
        ticket = await classify.classify(ctx.child("classify", role="classify"), item.matter, self.models["strong"])
        self.on_step(item.id, ticket)
        route = ROUTES[ticket.category]
        chosen = tier(route, ticket.hint)
        grants = named(item.own_words)
        if self.identity_key is not None:
            tools = Signed(
                tools, self.identity_key, ctx.clock, customer=item.customer, scopes=route.scopes, grants=grants
            )
        bound = Bound(tools, grants)
        handed = await hand_over(ctx, bound, ticket.category, item.matter) if route.hands_over else None
        desk = ctx.child("desk", role=route.role, tools=Filtered(bound, route.tools))
        steps: list[Step] = []
        final = FinalStep(text="", output=None, steps=0, tool_calls=0, flagged="stopped")
        try:
            async for step in self.agent(ticket.category, chosen).run(desk, item.messages):
                self.on_step(item.id, step)
                steps.append(step)
                if isinstance(step, ToolStep):
                    bound.saw(step.result)
                elif isinstance(step, FinalStep):
                    final = step
        except AgentStopped:
            if not refunds(steps):  # what became of money is told also without a model's words
                raise
        tried, became = refunds(steps), outcome(route, steps)
        if became == "unknown" and not tried and not route.hands_over and (code := out_of_reach(steps)):
            raise ToolUnavailable(f"nothing could be looked up, as the tools were away ({code}); try again later")
        return Answer(
            outcome="unknown" if route.hands_over and handed is None else became,
            category=ticket.category,
            priority=ticket.priority,
            answer=letter(route, tried, handed, final.text, korean=item.korean, shown=refunded(steps)),
            model_used=_served(steps) or self.models[chosen],
            steps=ctx.spent.calls,
            tool_calls=sum(isinstance(step, ToolStep) for step in steps),
            flagged="classification_default" if ticket.flagged else final.flagged,
            refunds=tried,
            ticket=handed,
        )


def _served(steps: Sequence[Step]) -> str:
    """The model that took the place of the route's, when a budget was nearly used; empty when none did."""
    answers = (step.answer for step in reversed(steps) if isinstance(step, ModelStep))
    return next((answer.model for answer in answers if answer.instead_of), "")


async def hand_over(ctx: TaskContext, tools: ToolSet, subject: str, text: str) -> str | None:
    """Give a request to a person, and return the number of its ticket; None when that cannot be said to have worked."""
    outer = ctx.child("hand_over", role="hand_over", tools=Filtered(tools, (HAND_OVER,)))
    try:
        result = await outer.tool(HAND_OVER, {"subject": subject, "summary": text[:MAX_SUMMARY]})
    except ToolFault:
        return None
    opened = result.structured if isinstance(result.structured, Mapping) and not result.is_error else {}
    return preview(str(opened.get("ticket_id") or ""), 64) or None
