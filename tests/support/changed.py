"""`siafu` with another duty for every route: what a user's edit of the prompts between two runs does."""

from __future__ import annotations

import msgspec

from siafu.apps.support import routes, swarm
from siafu.cli.main import main

DUTY = "Answer in rhymes."


def changed() -> dict[str, routes.Route]:
    return {
        category: msgspec.structs.replace(route, duty=f"{route.duty} {DUTY}")
        for category, route in routes.ROUTES.items()
    }


if __name__ == "__main__":
    setattr(swarm, "ROUTES", changed())  # noqa: B010  not exported, which is as it should be
    main()
