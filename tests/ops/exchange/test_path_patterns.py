"""Path patterns: what each stands for, which rule holds, and which rules hold for nothing."""

from __future__ import annotations

import pytest

from isthmus.ops.exchange.parameter_trees import IdleRule, first_match, idle_rules, matches

PATHS = ("params/Dense_0/kernel", "params/Dense_0/bias", "params/embedding", "batch_stats/mean", "key")


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("key", "key", True),
        ("key", "keys", False),
        ("key", "params/key", False),
        ("params", "params/key", False),
        ("params/*", "params/key", True),
        ("params/*", "params/a/key", False),
        ("params/*", "params", False),
        ("*/key", "params/key", True),
        ("Dense_*/kernel", "Dense_12/kernel", True),
        ("Dense_*/kernel", "Dense_1/a/kernel", False),
        ("D*e_*", "Dense_0", True),
        ("**", "key", True),
        ("**", "a/b/c", True),
        ("params/**", "params", True),
        ("params/**", "params/a/b", True),
        ("params/**", "paramsets/a", False),
        ("**/bias", "bias", True),
        ("**/bias", "a/b/bias", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "a/bz", False),
        ("a.b", "axb", False),
        ("layers/[0]", "layers/[0]", True),
        ("*a*b*a", "aabba", True),
        ("*a*b*a", "aabbab", False),
        ("**/a/**/b/*/**", "a/a/b/b", True),
        ("**/a/**/b/*/**", "a/a/ab/b", False),
        ("**/ab/**/b", "abc/ab/b", True),
        ("**/ab/**/b", "ab/abc", False),
        ("**", "a//b", True),
    ],
)
def test_what_a_pattern_stands_for(pattern: str, path: str, is_match: bool) -> None:
    assert matches(pattern, path) is is_match


@pytest.mark.timeout(60)  # Where each star may go back to any other place, these take years.
def test_no_pattern_takes_exponential_time() -> None:
    assert not matches("*a" * 30 + "*b", "a" * 200)
    assert not matches("**/a/" * 30 + "b", "/".join("a" * 200))


def test_of_rules_in_order_the_first_that_matches_holds() -> None:
    rules = (("params/embedding", "average"), ("params/**", "rda"), ("**", "local"))
    assert [first_match(rules, path) for path in PATHS] == ["rda", "rda", "average", "local", "local"]
    assert first_match(rules[:1], "key") is None


def test_a_rule_that_holds_for_nothing_is_found_and_what_takes_it_all() -> None:
    rules = (("params/**", 1), ("params/embedding", 2), ("head", 3), ("**", 4))
    assert idle_rules(rules, PATHS) == [IdleRule("params/embedding", "params/**"), IdleRule("head", None)]


def test_only_a_last_rule_for_everything_may_be_left_over() -> None:
    assert idle_rules((("a", 1), ("**", 2)), ["a"]) == []
    assert idle_rules((("a", 1), ("**", 2), ("*", 3)), ["a"]) == [IdleRule("**", "a"), IdleRule("*", "a")]
