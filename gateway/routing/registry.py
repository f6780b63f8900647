"""Routing policies by name."""

from collections.abc import Callable

from baton.errors import invalid
from gateway.routing.base import Policy
from gateway.routing.cost import Cost
from gateway.routing.simple import LeastLoaded, Prefix, Random, RoundRobin

_POLICIES: dict[str, Callable[[], Policy]] = {
    "cost": Cost,
    "prefix": Prefix,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "random": Random,
}
POLICY_NAMES = tuple(_POLICIES)


def make_policy(name: str) -> Policy:
    """A new one.

    Raises:
        BatonError: INVALID_ARGUMENT for a name that is none of `POLICY_NAMES`.
    """
    if name not in _POLICIES:
        raise invalid(f"got --routing-policy {name!r}, expected one of {', '.join(POLICY_NAMES)}")
    return _POLICIES[name]()
