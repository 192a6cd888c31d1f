"""Pure cores: the scheduler of a host, the quorum of a round, the membership of a run.

`scheduler_core` decides when a node fires, what a firing takes, where items go, and which producers get credit; the
tape included. `quorum_core` decides when a round of votes closes, with which votes, and why. `membership_core` decides
which members of a run are alive, silent, stuck, slow or gone."""
