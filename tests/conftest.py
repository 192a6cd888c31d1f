"""Settings of the whole suite: the same examples on every machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "isthmus", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("isthmus")
