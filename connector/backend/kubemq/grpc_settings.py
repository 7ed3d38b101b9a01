"""How gRPC's own library does its input and output: set before its core starts.

Owns one switch of the environment, for this process and its children; a value given there overrides it.  The library
hands sockets to the threads of an "event engine"; without it the thread that waits for completions does the work
itself, one hop less.  Measured: docs/adr/0003-kubemq-adapter.md.
"""

from __future__ import annotations

import os

#: gRPC's documented variable for its experiments; a minus switches one off that is on by default.
VARIABLE = "GRPC_EXPERIMENTS"
EXPERIMENTS = "-event_engine_client"


os.environ.setdefault(VARIABLE, EXPERIMENTS)
