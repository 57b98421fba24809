"""Times that are planted, for tests of what a benchmark says of them."""

from attnlab.bench import Seconds

SPEEDS = (1.0, 1.1, 1.0, 0.9, 1.0)  # of the machine in each round: what a ratio must not see


def planted(**times):
    """The same seconds in every round but for the speed of the machine, and all of them CPU time."""
    return {name: [Seconds(s * speed, s * speed) for speed in SPEEDS] for name, s in times.items()}


def by_id(rows):
    return {row["id"]: row for row in rows}
