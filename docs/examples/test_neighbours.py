from mine import task

SLOW = (1, 1, 1, 0.5)  # learner 3 has half the speed


def test_gossip_waits_for_nobody(world):
    result = world.run("gossip.py:build", task=task, learners=4, steps=200, speeds=SLOW)
    assert result.waits == 0
    fast, slow = result.slots[0].steps, result.slots[3].steps
    assert abs(fast - 2 * slow) <= 2  # each at its own pace


def test_a_ring_waits_for_its_slowest(world):
    result = world.run("ring.py:build", task=task, learners=4, steps=200, speeds=SLOW)
    assert result.waits > 4e9  # nanoseconds of virtual time, all learners together
