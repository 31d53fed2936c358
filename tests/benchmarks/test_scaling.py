"""What the simulator says about moving data between machines; the figures of the chips are nothing to test."""

from benchmarks.scaling import Chip

CHIP = Chip("chip", flops=1e12, memory=1e9, near=400.0, far=10.0, machine=8)
PARTS = {"gradients": 100.0, "fsdp": 700.0, "model": 0.0}


def test_chips_of_a_machine_that_gather_the_same_share_their_links_to_other_machines():
    """A machine fetches an array once, through the ports of all its chips."""
    assert CHIP.seconds_moving(PARTS, {"fsdp": 64}) == 800 / (8 * 10)
    assert CHIP.seconds_moving(PARTS, {"fsdp": 16, "model": 4}) == 800 / (2 * 10)
    assert CHIP.seconds_moving(PARTS, {"fsdp": 8, "model": 8}) == 800 / 10


def test_what_is_fetched_also_passes_the_links_inside():
    fast = Chip("chip", flops=1e12, memory=1e9, near=400.0, far=100.0, machine=8)
    assert fast.seconds_moving(PARTS, {"fsdp": 64}) == 800 / 400
    assert fast.seconds_moving({**PARTS, "model": 400.0}, {"fsdp": 8, "model": 8}) == 1 + 800 / 100
