"""Plants a bug in every process of a run whose PYTHONPATH has this folder: a shard that comes back has its fragments
begun anew, whatever was merged of them."""

import os

if "KILLS_PLANT" in os.environ:
    from isthmus.ops.recovery.hold import ShardMemory

    ShardMemory.fresh = lambda self, unborn, context: list(unborn)
