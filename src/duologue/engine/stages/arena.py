"""Shared memory for large messages between a parent and its worker: one ring per direction.

Rules kept here:

* the memory has no name (a memfd, else an unlinked file), so that a killed process leaks nothing;
* one side writes, the other reads, in the order of the frames on the socket that announce each block;
* the reader publishes how far it has read in the first bytes of the memory, so that freeing costs no message;
* a block that does not fit now goes inline over the socket: nobody ever waits for room.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from typing import Final

RING_BYTES: Final = 8 * 1024 * 1024
_HEADER_BYTES: Final = 4096
_POSITION = struct.Struct("=Q")


def create_memory() -> int:
    """A descriptor of fresh shared memory without a name, to be inherited by a worker."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("duologue-stage")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _HEADER_BYTES + RING_BYTES)
    return descriptor


class Ring:
    """One direction. The descriptor may be closed once the ring exists."""

    __slots__ = ("_memory", "_written")

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _HEADER_BYTES + RING_BYTES)
        self._written = 0  # absolute: counts every byte of the ring ever used or skipped

    def write(self, body: bytes | bytearray | memoryview) -> int | None:
        """Put a block into the ring; returns its absolute position, or ``None`` when there is no room now."""
        length = len(body)
        position = self._written
        left_before_wrap = RING_BYTES - position % RING_BYTES
        if length > left_before_wrap:
            position += left_before_wrap
        (read,) = _POSITION.unpack_from(self._memory, 0)
        if position + length - read > RING_BYTES:
            return None
        start = _HEADER_BYTES + position % RING_BYTES
        self._memory[start : start + length] = body
        self._written = position + length
        return position

    def view(self, position: int, length: int) -> memoryview:
        """The block at ``position``; release it, then :meth:`free` the block. ``ValueError`` for an impossible one."""
        offset = position % RING_BYTES
        if length > RING_BYTES - offset:
            raise ValueError(f"a block of {length} bytes can't be at position {position} of a ring of {RING_BYTES}")
        start = _HEADER_BYTES + offset
        return memoryview(self._memory)[start : start + length]

    def free(self, position: int, length: int) -> None:
        """The writer may overwrite this block and all before it."""
        _POSITION.pack_into(self._memory, 0, position + length)

    def close(self) -> None:
        """Unmap the memory. Idempotent."""
        self._memory.close()
