"""The core of a run's home: which life of which replica runs, when the next begins, and when the run is over.

`core` takes events; each of its parts decides one thing about the same `state`: how lives begin (`births`) and end
(`deaths`), what reports change (`watch`), how the run ends (`endings`), where a new daemon starts from (`takeover`).
The `fleet` knows where replicas are, the `liveness` roll which members are silent, stuck or slow, `reach` which are cut
off.
"""
