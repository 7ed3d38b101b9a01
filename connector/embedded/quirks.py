"""Which awkward behaviours of a real KubeMQ are reproduced: one table, one switch.

Owns the list; the code that acts on a field asks it by name.  Rule: what was measured on KubeMQ 2.4.0 (the contract
suite runs on both servers).  Names, their mangling, Sequences and counts are no quirks: they are always as in KubeMQ.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quirks:
    """One value per behaviour; ``ON`` is KubeMQ as it is, ``OFF`` what a newcomer would expect."""

    serial_streams: bool
    """A waiting Get blocks every later request of its stream, and a lost stream lives until its Get has ended."""
    fills_gets: bool
    """A Get answers when MaxItems are there or its time is over; otherwise some suffice, after a moment."""
    least_wait_ms: int
    """No Get waits less than this."""
    parks: bool
    """An answered Get keeps its room: later messages, and one per acknowledged one, vanish into it until it ends."""
    returns_all: bool
    """The first Get of an idle queue takes everything that was given back, however few it asked for."""
    hand_over_ms: int
    """What a closed transaction leaves goes to the other open ones after this time; 0: back into the queue at once."""
    get_slots: int
    """Gets share this many inner clients in turn; a waiting Get keeps its one.  0: no limit."""
    whole_waits: bool
    """ReceiveQueueMessages and AckAllQueueMessages use up their wait time even when nothing more can come."""
    silent_cluster: bool
    """Requests to the cluster's own channel are never answered."""


ON = Quirks(
    serial_streams=True,
    fills_gets=True,
    least_wait_ms=1000,
    parks=True,
    returns_all=True,
    hand_over_ms=100,
    get_slots=200,
    whole_waits=True,
    silent_cluster=True,
)

OFF = Quirks(
    serial_streams=False,
    fills_gets=False,
    least_wait_ms=0,
    parks=False,
    returns_all=False,
    hand_over_ms=0,
    get_slots=0,
    whole_waits=False,
    silent_cluster=False,
)
