"""One connection's output: gathering, marks, and when deliveries may go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connector.session.marks import Reading
from connector.session.output import Output


class Runtime:
    """The parts of ``ports.Runtime`` that an output uses."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.asked = 0
        self.reads: bool = True
        self.blocks = False
        self.output: Output

    def write(self, data: bytes) -> None:
        self.written.append(data)
        if self.blocks:
            self.output.block()

    def wants_flush(self) -> None:
        self.asked += 1

    def pause(self) -> None:
        self.reads = False

    def resume(self) -> None:
        self.reads = True


def make(high: int = 10, unread: int = 20) -> tuple[Output, Any]:
    runtime: Any = Runtime()
    output = Output(runtime, Reading(runtime.pause, runtime.resume), high, unread)
    runtime.output = output
    return output, runtime


def delivers(output: Output) -> bool:
    return output.takes_deliveries


def is_unread(output: Output) -> bool:
    return output.is_unread


def test_what_is_gathered_is_written_once() -> None:
    output, runtime = make()
    output.put(b"one")
    output.put(b"two")
    assert runtime.asked == 1
    assert not output.flush()
    assert runtime.written == [b"onetwo"]
    assert output.was_written
    output.flush()
    output.put(b"three")
    output.flush()
    assert runtime.written == [b"onetwo", b"three"]
    assert runtime.asked == 2


def test_a_flush_may_be_asked_for_without_output() -> None:
    output, runtime = make()
    output.ask_flush()
    output.ask_flush()
    output.put(b"x")
    assert runtime.asked == 1
    output.flush()
    assert runtime.written == [b"x"]


def test_deliveries_stop_at_the_mark_and_go_on_after_the_flush() -> None:
    output, _ = make(high=10)
    output.put(b"123456789")
    assert delivers(output)
    output.put(b"0")
    assert not delivers(output)
    assert output.flush()
    assert delivers(output)


def test_a_full_transport_stops_deliveries_until_it_has_room() -> None:
    output, runtime = make(high=10)
    runtime.blocks = True
    output.put(b"1234567890")
    assert not output.flush()
    assert not delivers(output)
    runtime.blocks = False
    assert output.unblock()
    assert delivers(output)
    assert not output.unblock()


def test_room_in_the_transport_is_not_enough_while_much_is_gathered() -> None:
    output, _ = make(high=10)
    output.block()
    output.put(b"1234567890")
    assert not output.unblock()
    assert output.flush()


def test_replies_nobody_reads_stop_the_reading_of_requests() -> None:
    output, runtime = make(unread=20)
    runtime.blocks = True
    for _ in range(2):
        output.put(b"1234567890")
        output.flush()
    assert runtime.reads
    output.put(b"1")
    output.flush()
    assert not runtime.reads
    output.unblock()
    assert runtime.reads


def test_what_has_large_answers_waits_until_they_are_read() -> None:
    output, runtime = make(unread=20)
    told: list[int] = []

    def tell(number: int) -> Callable[[None], None]:
        def done(_result: None) -> None:
            told.append(number)
            output.put(bytes(21))

        return done

    output.put(bytes(20))
    assert not is_unread(output)
    output.put(b"1")
    assert is_unread(output)
    for number in (1, 2, 3):
        output.when_read(tell(number))
    output.go_on()
    assert told == []
    output.flush()
    output.go_on()
    assert told == [1]
    runtime.blocks = True
    output.flush()
    output.go_on()
    assert told == [1]
    runtime.blocks = False
    output.unblock()
    output.go_on()
    assert told == [1, 2]
    output.discard()
    output.go_on()
    assert told == [1, 2]


def test_stopped_deliveries_never_go_on() -> None:
    output, _ = make(high=10)
    output.stop_deliveries()
    output.block()
    assert not output.unblock()
    output.put(b"1234567890")
    assert not output.flush()
    assert not delivers(output)


def test_discarded_output_is_not_written() -> None:
    output, runtime = make()
    output.put(b"x")
    output.discard()
    output.flush()
    assert runtime.written == []
    output.put(b"y")
    assert runtime.asked == 2
