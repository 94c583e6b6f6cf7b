"""`siafu shop` without the rules of its refund policy: nothing stops a refund but who may ask for it."""

from __future__ import annotations

from siafu.apps.support.shop.money import policy
from siafu.cli.main import main

if __name__ == "__main__":
    setattr(policy, "RefundPolicy", lambda **_: policy.NO_RULES)  # noqa: B010
    main()
