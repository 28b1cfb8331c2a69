"""Safeguards that are switched off, one at a time, to prove that the simulator notices (:mod:`duologue.sim.mutation`)."""

from __future__ import annotations

from typing import Final

from duologue.sim.mutations.abilities import ABILITIES
from duologue.sim.mutations.edit import Edit, Mutation, StaleMutationError, function_of
from duologue.sim.mutations.ends import ENDS
from duologue.sim.mutations.leases import LEASES
from duologue.sim.mutations.media import MEDIA

MUTATIONS: Final[tuple[Mutation, ...]] = (*ENDS, *MEDIA, *LEASES, *ABILITIES)

__all__ = ["MUTATIONS", "Edit", "Mutation", "StaleMutationError", "function_of"]
