"""The way through every page of the console, in a world that `world.make` made, with a broker of id 1."""

from __future__ import annotations

OURS = (
    "/schedules?topic=reminders",
    "/schedules?topic=reminders&failed=1",
    "/schedules/cancel?topic=reminders&partition=0&offset=1",
)
"""Pages of topics that only kbroker has; `world.schedule` makes them."""
WALK = (
    "/",
    "/topics",
    "/topics?internal=1&sort=size",
    "/topics/orders",
    "/topics/orders/messages",
    "/topics/orders/messages?from=oldest&where=.user.id+%3D%3D+%227%22",
    "/topics/orders/configs",
    "/topics/orders/records/0/1",
    "/topics/hostile/messages",
    "/topics/empty/messages",
    "/groups",
    "/group?name=billing",
    "/group/reset?name=billing",
    "/group/reset?name=billing&to=earliest",
    "/deadletters?topic=dlq.orders",
    "/deadletters/replay?topic=dlq.orders&show=1",
    "/deadletters/purge?topic=dlq.orders&what=all",
    *OURS,
    "/transactions",
    "/transactions?look=hanging",
    "/transaction?id=checkout-1",
    "/transactions/producers?topic=orders&partition=0",
    "/cluster",
    "/broker?id=1",
    "/cluster/move?topic=orders&partition=0&to=1",
    "/cluster/drain?broker=1",
    "/configs?q=retention",
    "/configs?everyone=1",
    "/configs?kind=logger",
    "/configs?kind=group",
    "/configs?kind=client-metrics",
    "/features",
    "/acls",
    "/users",
    "/quotas",
    "/tokens",
    "/schemas",
)
