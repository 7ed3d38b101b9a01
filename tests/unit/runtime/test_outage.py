"""What operators read of an outage: two lines, however many notice it."""

from __future__ import annotations

from structlog.testing import capture_logs

from connector.broker.counters import Counters
from connector.broker.ports import Unavailable
from connector.runtime.outage import CALM_S, Outage


class Clock:
    """A moment that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_has_a_line_at_its_begin_and_one_with_counts_at_its_end() -> None:
    clock, counters = Clock(), Counters()
    outage = Outage(counters, clock)
    with capture_logs() as logs:
        for second in range(5):
            clock.now = 100.0 + second
            for queue in range(50):
                outage.on_loss("reads", Unavailable("no link"), kubemq_channel=f"amqp.default.q{queue}")
            outage.on_loss("publishes", Unavailable("no link"), 10)
        assert [entry["event"] for entry in logs] == ["KubeMQ or the link to it is lost"]
        assert logs[0]["kubemq_channel"] == "amqp.default.q0"
        outage.on_answer()  # it answers, but the last interruption is too recent
        assert len(logs) == 1
        clock.now += CALM_S
        outage.on_answer()
    assert counters.link_losses == 255
    assert logs[1]["interrupted"] == {"reads": 250, "publishes": 50}
    assert logs[1]["seconds"] == 4.0


def test_the_next_outage_is_told_of_again() -> None:
    clock = Clock()
    outage = Outage(Counters(), clock)
    with capture_logs() as logs:
        for _ in range(2):
            outage.on_loss("reads", Unavailable("no link"))
            assert outage.noticed.is_set()
            assert outage.is_on
            clock.now += CALM_S
            outage.on_answer()
            assert not outage.is_on
    assert len(logs) == 4


def test_who_answers_without_an_outage_says_nothing() -> None:
    with capture_logs() as logs:
        Outage(Counters(), Clock()).on_answer()
    assert logs == []
