"""Who brought the machines of a run, and whose word counts against whom.

An admitted machine may lie, and whoever brought one may have brought several: by one invitation for many names, or as
their owner. All of them are one *party*, and count as one wherever hosts speak against others or for the run. The rules
hold for every question of that kind; they know nothing of what is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from isthmus.runtime.ids import Party

WITNESSES_MIN: Final = 2
"""Parties that have to say the same of a third: one alone may lie."""


class Parties:
    """The parties of the machines of one run, by machine; a machine of nobody's is a party of its own.

    `home` is the machine whose hosts the run trusts, as those that it has placed elsewhere.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        self._of: dict[str, Party] = {}

    def of(self, machine: str) -> Party:
        """The party of a machine; the home is its own, whoever else its owner brings."""
        return self._of.get(machine, Party(machine))

    def named(self, machines: Iterable[str]) -> set[str]:
        """The names of the parties of these machines."""
        return {self.of(name).name for name in machines}

    def know(self, parties: Mapping[str, Party]) -> None:
        """Note who brought these machines."""
        self._of.update((machine, party) for machine, party in parties.items() if machine != self.home)

    def noted(self) -> tuple[tuple[str, str, int | None], ...]:
        """(machine, party, slots) of those that are not their own."""
        return tuple((name, *party) for name, party in sorted(self._of.items()) if party != Party(name))

    def may_condemn(self, accusers: Collection[str], machine: str, among: Collection[str]) -> bool:
        """Whether parties `accusers` together may have a host on a machine ended; `among` are all that take part.

        The home may; on its own machine, nobody else. A party may end its own. Else it takes more than half of all
        other parties, and WITNESSES_MIN at least.
        """
        if self.home in accusers or machine == self.home:
            return self.home in accusers
        accused = self.of(machine).name
        others = set(among) - {accused}
        witnesses = others.intersection(accusers)
        is_most = len(witnesses) >= WITNESSES_MIN and 2 * len(witnesses) > len(others)
        return accused in accusers or is_most

    def speak_for(self, witnesses: Iterable[str], machines: Iterable[str]) -> bool:
        """Whether what hosts on machines `witnesses` met may be taken for what all of `machines` do, and end the run.

        The home's own word counts, and is needed where it has some of them. Else it takes all parties of these
        machines, or more than half of them, and WITNESSES_MIN at least.
        """
        speaking, about = self.named(witnesses), self.named(machines)
        if self.home in speaking or self.home in about:
            return self.home in speaking
        speaking &= about
        is_most = len(speaking) >= WITNESSES_MIN and 2 * len(speaking) > len(about)
        return is_most or (bool(speaking) and speaking == about)
