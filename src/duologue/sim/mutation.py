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


def rewritten(edit: Edit) -> FunctionType:
    """The function of an edit with its text replaced."""
    function = function_of(edit.target)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(edit.old) != 1:
        raise StaleMutationError(f"{edit.target} holds {edit.old!r} {source.count(edit.old)} times, not once")
    code = compile(
        source.replace(edit.old, edit.new),
        f"<{edit.target}, mutated>",
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
        for edit in mutation.edits:
            function = function_of(edit.target)
            replacement = rewritten(edit)
            kept.append((function, function.__code__))
            function.__code__ = replacement.__code__
        yield
    finally:
        for function, code in reversed(kept):
            function.__code__ = code
