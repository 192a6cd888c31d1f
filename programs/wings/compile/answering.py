"""A process that compiles: it answers one request on its line, with progress before, and ends."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from isthmus.ops.gang.mesh_sharding import ShardingError
from isthmus.runtime.errors import RequestError
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import die_with_parent, unblock

Answered: TypeAlias = Callable[[Mapping[str, Any], Callable[[str], None]], Any]
"""The answer to a request, as JSON; its second argument is called with the name of each function before it is
compiled."""


def answer_one(arguments: list[str], answered: Answered) -> int:
    """Answer the request on the line that the `arguments` of this process name; its faults where that raises a
    RequestError, else what happened. The exit status."""
    unblock()
    die_with_parent()
    line = ProcessLine.inherited(arguments[0])
    request = line.next()
    if request is None:
        return 0
    try:
        line.send({"answer": answered(request, lambda name: line.send({"doing": name}))})
    except RequestError as error:
        line.send({"faults": [list(fault) for fault in error.faults]})
    except ShardingError as error:
        line.send({"faults": [[error.action, error.expected, error.found, error.remedy]]})
    except BaseException:
        line.send({"error": traceback.format_exc()})
    return 0
