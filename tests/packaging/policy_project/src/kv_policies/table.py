"""A policy as data: every allocation in every process goes by it, none calls Python."""
from kvshm.eviction import Policy, levels


class HalfLife(Policy):
    """Each doubling of a block's uses lets it grow `doublings` times twice as old."""

    def __init__(self, doublings: int = 1) -> None:
        steps = [(2**step, step * doublings) for step in range(4)]
        super().__init__(f"halflife-{doublings}", shift=levels(*steps))
