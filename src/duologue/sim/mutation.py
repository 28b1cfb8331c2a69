"""Safeguards switched off in this process, one at a time, and put back.

Rules kept here: production code knows nothing of this; a mutation rewrites the source of single functions in this process
and puts them back; a mutation whose text is no longer in the code is an error and not a survivor, so the list stays true.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType

from duologue.sim.mutations import Edit, Mutation, StaleMutationError, function_of


def rewritten(*edits: Edit) -> FunctionType:
    """The function of these edits, which are of one and the same, with its texts replaced."""
    target = edits[0].target
    function = function_of(target)
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise StaleMutationError(f"{target} holds {edit.old!r} {source.count(edit.old)} times, not once")
        source = source.replace(edit.old, edit.new)
    code = compile(
        source,
        f"<{target}, mutated>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    space = dict(function.__globals__)
    exec(code, space)
    return next(value for name, value in space.items() if name == function.__name__ and isinstance(value, FunctionType))


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The mutation is in force inside the block."""
    kept = []
    try:
        for target in dict.fromkeys(edit.target for edit in mutation.edits):
            function = function_of(target)
            replacement = rewritten(*(edit for edit in mutation.edits if edit.target == target))
            kept.append((function, function.__code__))
            function.__code__ = replacement.__code__
        yield
    finally:
        for function, code in reversed(kept):
            function.__code__ = code
