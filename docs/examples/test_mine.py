from mine import task


def test_every_learner_is_merged_and_none_of_them_waits(world):
    result = world.run("decoupled-diloco", task=task, learners=4, steps=200)
    assert result.waits == 0
    assert result.eval_loss < 0.5 * result.summary["eval_loss_initial"]
    assert result.summary["contributors_mean"] > 3.5
