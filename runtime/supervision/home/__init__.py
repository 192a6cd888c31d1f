"""The core of a run's home: which life of which replica is to be, when the next begins, and when the run is over.

`core` takes events; each of its parts decides one thing about the same `state`: how lives begin (`births`) and end
(`deaths`), what is heard of them (`watch`), how the run ends (`endings`), what a new daemon believes (`takeover`).
Where replicas are is for the `fleet`, who is silent, stuck or slow for the `liveness` roll, who is cut off for `reach`.
"""
