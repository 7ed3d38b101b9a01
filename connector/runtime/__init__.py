"""Asyncio: sockets, timers and the fixed set of tasks that move batches to and from KubeMQ."""
