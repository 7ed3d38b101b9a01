"""The judgement of one run, from its ledger.

Owns the product's promise in the form of checks: a confirmed message is never lost; an acknowledged one does not come
back but within the flush window of a crash, then flagged; an unacknowledged one always comes back, flagged, at the tail
of its queue; prefetch is strict; order holds from one publisher to one consumer.  Must not know how the run was done.

A crash of the connector loses what it had not flushed: acknowledgements younger than ``WINDOW_S`` of undisturbed time,
and the moves of requeued messages, which are a copy and an acknowledgement.  Nothing else excuses a second coming.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from tests.support.ledger import Copy, Delivery, Disturbance, Fate, Ledger, Publish, Session, Settlement

#: Who looks for what should not be there, when all was drained and restarted.
LAST_LOOK = "last look"
#: An acknowledgement older than this, in undisturbed time, has reached the backend.
WINDOW_S = 1.0
#: After the end of an outage or a crash the connector may need this long to be itself again.
RECOVERY_S = 2.0
#: A killed process is gone so soon after the fault was noted.
DYING_S = 0.05
#: Client or server may notice this long after the other, or a disturbance's end, that their connection is broken.
NOTICE_S = 1.5
#: A get or a declare waits so long for the backend, and is refused with this text then.
DEADLINE_S = 10.0
LATE = "541 INTERNAL_ERROR - KubeMQ did not answer in time"


class Verdict:
    """What the ledger says: ``problems`` by kind, ``counts``, and two lists of seconds.

    ``windows``: from a certain acknowledgement to the crash that undid it; ``pauses``: from the end of an outage of the
    backend to the next confirm.
    """

    def __init__(self) -> None:
        self.problems: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self.windows: list[float] = []
        self.pauses: list[float] = []

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def add(self, problem: str, text: str) -> None:
        """One more thing is wrong."""
        self.problems.setdefault(problem, []).append(text)


class Judge:
    """Reads one ledger; ``requeues_to_tail`` is the connector's way, RabbitMQ's is the old place.

    ``may_withhold``: a real KubeMQ was killed; what it withheld comes late.  ``withheld_count`` of its messages may be
    missing: as many as the connector named in its metric when all else was drained, and nobody rescued.
    """

    def __init__(
        self, ledger: Ledger, *, requeues_to_tail: bool = True, may_withhold: bool = False, withheld_count: int = 0
    ) -> None:
        self._ledger = ledger
        self._to_tail = requeues_to_tail
        self._may_withhold = may_withhold
        self._withheld_count = withheld_count
        self._verdict = Verdict()
        self._server_faults = [each for each in ledger.disturbances if each.what in {"connector", "backend"}]
        self._returns: dict[str, list[list[float]]] = {}
        self._crashes = [each for each in self._server_faults if self._is_crash(each)]

    def judge(self) -> Verdict:
        """Return the verdict."""
        ledger, verdict = self._ledger, self._verdict
        for problem, texts in ledger.notes.items():
            for text in texts:
                verdict.add(problem, text)
        self._count()
        for copy in ledger.copies.values():
            self._check_lost(copy)
            self._check_repeats(copy)
            if copy.deliveries and copy.deliveries[-1].session.client == LAST_LOOK:
                verdict.add("left over", self._story(copy))
        self._check_order()
        if self._to_tail:
            self._check_tail()
        self._check_sessions()
        self._measure_pauses()
        return verdict

    def _count(self) -> None:
        counts, ledger = self._verdict.counts, self._ledger
        counts["published"] = len(ledger.publishes)
        for publish in ledger.publishes.values():
            counts[publish.fate.value] += 1
        counts["copies"] = len(ledger.copies)
        counts["deliveries"] = len(ledger.deliveries)
        counts["flagged"] = sum(delivery.redelivered for delivery in ledger.deliveries)
        counts["requeued"] = sum(delivery.settlement is Settlement.REQUEUED for delivery in ledger.deliveries)

    # ------------------------------------------------------------------ disturbances

    def _is_crash(self, fault: Disturbance) -> bool:
        """A kill; and an orderly end that could not flush, since the backend was disturbed."""
        if fault.is_crash or fault.kind != "CONNECTOR_TERM":
            return fault.is_crash
        return any(
            _overlap(other, fault.began_at, _end(fault)) > 0 for other in self._server_faults if other is not fault
        )

    def _undisturbed_s(self, start: float, end: float) -> float:
        """Seconds between two moments in which neither connector nor backend was disturbed."""
        covered: list[tuple[float, float]] = sorted(
            (max(start, fault.began_at), min(end, _end(fault) + RECOVERY_S))
            for fault in self._server_faults
            if fault.began_at < end and _end(fault) + RECOVERY_S > start
        )
        total, at = end - start, start
        for began, ended in covered:
            total -= max(0.0, ended - max(began, at))
            at = max(at, ended)
        return total

    def _crash_within_window(self, moment: float, before: float) -> Disturbance | None:
        """The first crash after a moment, if it came before what was done at that moment was certainly flushed.

        A moment inside a crash counts: the process dies a little after the fault was noted.
        """
        for crash in self._crashes:
            if moment > _end(crash) or crash.began_at > before:
                continue
            if self._undisturbed_s(moment, crash.began_at) < WINDOW_S:
                return crash
        return None

    # ------------------------------------------------------------------ one copy

    def _check_lost(self, copy: Copy) -> None:
        """Confirmed, or delivered and unacknowledged, and never settled for good."""
        if copy.is_done:
            return
        if copy.queue in self._ledger.auto_ack_queues:
            self._verdict.counts["auto-ack undelivered"] += copy.publish.fate is Fate.CONFIRMED
            return
        if copy.publish.fate is not Fate.CONFIRMED and not copy.deliveries:
            return
        if self._verdict.counts["missing, as withheld"] < self._withheld_count:
            self._verdict.counts["missing, as withheld"] += 1
        else:
            self._verdict.add("lost", self._story(copy))

    def _check_repeats(self, copy: Copy) -> None:
        """Every delivery but the first has a reason and its flag.

        The reasons, in this order: the ones before went back; a crash undid an acknowledgement; a crash interrupted a
        move, so that there are two of it.  Each interrupted move explains one more of them, once and for all.
        """
        for index, delivery in enumerate(copy.deliveries[1:], 1):
            sent_at = self._sent_at(delivery)
            before = [each for each in copy.deliveries[:index] if each.at <= sent_at]
            if not delivery.redelivered:
                self._verdict.add("unflagged", self._story(copy))
            done = [each for each in before if _is_done(each, sent_at)]
            kept = [each for each in done if not self._was_undone(each, sent_at)]
            held = [each for each in before if self._is_held(each, sent_at)]
            moves = sum(self._was_moving(each, sent_at) for each in before) + self._was_moving_unseen(copy)
            if len(kept) + len(held) > moves:
                self._verdict.add("unexpected" if kept else "held twice", self._story(copy))
            elif kept or held:
                self._verdict.counts["doubled by a move"] += 1
            elif done:
                self._note_doubled(done[0], delivery)
            else:
                self._verdict.counts["came back"] += 1

    def _sent_at(self, delivery: Delivery) -> float:
        """When it came; at the latest when its client said good-bye, where its link was stalled then."""
        leaving_at = delivery.session.leaving_at
        if leaving_at is None or delivery.at <= leaving_at:
            return delivery.at
        links = ("client *", f"client {delivery.session.client}")
        is_stalled = any(
            fault.what in links and fault.began_at <= leaving_at and delivery.at <= _end(fault) + NOTICE_S
            for fault in self._ledger.disturbances
        )
        return leaving_at if is_stalled else delivery.at

    def _is_held(self, delivery: Delivery, moment: float) -> bool:
        """Whether a client certainly had this delivery, unsettled, at a moment."""
        is_settled = delivery.settled_at is not None and delivery.settled_at <= moment
        return not is_settled and delivery.session.proof_at > moment

    def _was_undone(self, done: Delivery, before: float) -> bool:
        """Whether a crash may have lost an acknowledgement."""
        return self._crash_within_window(done.settled_at or 0.0, before) is not None

    def _note_doubled(self, done: Delivery, delivery: Delivery) -> None:
        """Count it, with the undisturbed time from the certain acknowledgement to the crash that undid it."""
        crash = self._crash_within_window(done.settled_at or 0.0, delivery.at)
        self._verdict.counts["doubled"] += 1
        certain_at = done.certain_at or 0.0
        if crash is not None and certain_at < crash.began_at:
            self._verdict.windows.append(self._undisturbed_s(certain_at, crash.began_at))

    def _was_moving(self, delivery: Delivery, before: float) -> bool:
        """Whether a crash can have met the move of a delivery that went back to its queue."""
        if delivery.settlement is Settlement.REQUEUED:
            return self._crash_within_window(delivery.settled_at or 0.0, before) is not None
        if delivery.settlement is Settlement.DONE and delivery.certain_at is not None:
            return False
        return any(
            delivery.at <= moment and self._is_before_crash(moment, before) for moment in self._ends(delivery.session)
        )

    def _was_moving_unseen(self, copy: Copy) -> bool:
        """The same for a delivery that never reached its client: the first that did was flagged."""
        first = copy.deliveries[0]
        return first.redelivered and any(
            copy.publish.at <= moment and self._is_before_crash(moment, first.at)
            for moments in self._returns_of(copy.queue)
            for moment in moments
        )

    def _returns_of(self, queue: str) -> list[list[float]]:
        """When deliveries of a queue may have gone back with a channel: the moments of each channel that ended."""
        if queue not in self._returns:
            clients = {each.session.client for each in self._ledger.deliveries if each.copy.queue == queue}
            ends = [self._ends(session) for session in self._ledger.sessions if session.client in clients]
            self._returns[queue] = [moments for moments in ends if moments]
        return self._returns[queue]

    def _is_surely_first(self, delivery: Delivery) -> bool:
        """Whether nobody can have been sent this copy before."""
        if self._may_withhold:  # what the dead self of a server had comes late
            return False
        copy = delivery.copy
        for moments in self._returns_of(copy.queue):  # the server may deliver to a client that is gone already
            if min(moments) <= delivery.at and max(moments) + NOTICE_S >= copy.publish.at:
                return False
        restarts = (fault for fault in self._server_faults if fault.what == "connector")
        return not any(_overlap(fault, copy.publish.at, delivery.at) > 0 for fault in restarts)

    def _ends(self, session: Session) -> list[float]:
        """When a channel may have ended for the server: it may notice a broken link before the client does."""
        if session.ended_at is None:
            return []
        links = ("client *", f"client {session.client}")
        moments = [fault.began_at for fault in self._ledger.disturbances if fault.what in links]
        if session.leaving_at is not None:
            moments.append(session.leaving_at)
        return [session.ended_at, *(each for each in moments if session.opened_at <= each <= session.ended_at)]

    def _is_before_crash(self, moment: float, before: float) -> bool:
        crash = self._crash_within_window(moment, before)
        return crash is not None and moment <= crash.began_at + DYING_S

    # ------------------------------------------------------------------ order

    def _check_order(self) -> None:
        """One publisher's channel, one queue, one consumer: first deliveries ascend.

        What is flagged may have been delivered to somebody who did not receive it; where that cannot be, it was flagged
        because it was stored again after an outage, and its order counts.
        """
        last: dict[tuple[Session, Session, str, str], Delivery] = {}
        for delivery in self._ledger.deliveries:
            copy = delivery.copy
            if (
                self._is_late(delivery)
                or copy.deliveries[0] is not delivery
                or (delivery.redelivered and not self._is_surely_first(delivery))
            ):
                continue
            key = (copy.publish.session, delivery.session, delivery.consumer, copy.queue)
            before = last.get(key)
            if before is not None and before.copy.publish.number > copy.publish.number:
                text = f"{self._story(copy)}\n    came after {self._story(before.copy)}"
                self._verdict.add("out of order", text)
            last[key] = delivery

    def _is_late(self, delivery: Delivery) -> bool:
        """Whether it was withheld until a rescue, perhaps."""
        rescued_at = self._ledger.rescued_at
        return rescued_at is not None and delivery.at >= rescued_at

    def _check_tail(self) -> None:
        """What was given back comes after all that was confirmed before, unless a crash left it in its old place."""
        requeued: dict[tuple[Session, str, str], list[tuple[float, Delivery]]] = {}
        for delivery in self._ledger.deliveries:
            copy = delivery.copy
            key = (delivery.session, delivery.consumer, copy.queue)
            if not delivery.redelivered and not self._is_late(delivery):
                self._check_not_overtaken(delivery, requeued.get(key, []))
                continue
            index = copy.deliveries.index(delivery)
            before = copy.deliveries[index - 1] if index else None
            if before is not None and before.settlement is Settlement.REQUEUED and before.settled_at is not None:
                requeued.setdefault(key, []).append((before.settled_at, delivery))

    def _check_not_overtaken(self, delivery: Delivery, requeued: list[tuple[float, Delivery]]) -> None:
        publish = delivery.copy.publish
        for given_back_at, came_back in requeued:
            if publish.fate is not Fate.CONFIRMED or (publish.fate_at or 0.0) >= given_back_at:
                continue
            is_disturbed = any(
                _overlap(fault, given_back_at - WINDOW_S, came_back.at + RECOVERY_S) > 0
                for fault in self._server_faults
            )
            if not is_disturbed:
                text = f"{self._story(came_back.copy)}\n    before {self._story(delivery.copy)}"
                self._verdict.add("requeued before the tail", text)
                return

    def _measure_pauses(self) -> None:
        """How soon confirms come again, where no other fault of connector or backend interferes."""
        confirms = sorted(
            publish.fate_at
            for publish in self._ledger.publishes.values()
            if publish.confirming and publish.fate is Fate.CONFIRMED and publish.fate_at is not None
        )
        for fault in self._server_faults:
            at = bisect_left(confirms, _end(fault))
            if fault.what != "backend" or at == len(confirms):
                continue
            end, confirmed_at = _end(fault), confirms[at]
            if not any(
                other.began_at <= confirmed_at and _end(other) >= end
                for other in self._server_faults
                if other is not fault
            ):
                self._verdict.pauses.append(confirmed_at - end)

    # ------------------------------------------------------------------ sessions

    def _check_sessions(self) -> None:
        """A client stays connected, whatever happens to the backend."""
        for session in self._ledger.sessions:
            if session.ended_at is None or session.reason == "left":
                continue
            if self._has_waited(session):
                self._verdict.counts["refused in an outage"] += 1
            elif not any(_can_break(fault, session) for fault in self._ledger.disturbances):
                at = session.ended_at - self._ledger.began_at
                self._verdict.add("disconnected", f"{session.name} at {at:.3f} s: {session.reason}")

    def _has_waited(self, session: Session) -> bool:
        """Whether it asked for something while the backend was away, and was refused at the deadline."""
        at = session.ended_at
        if at is None or LATE not in session.reason:
            return False
        return self._undisturbed_s(at - DEADLINE_S, at) <= DEADLINE_S / 2

    # ------------------------------------------------------------------ texts

    def _story(self, copy: Copy) -> str:
        return "; ".join(self._tell(copy))

    def _tell(self, copy: Copy) -> Iterator[str]:
        publish = copy.publish
        yield f"{publish.message_id} in {copy.queue}: published {self._at(publish.at)}"
        yield _fate(publish) + (f" {self._at(publish.fate_at)}" if publish.fate_at is not None else "")
        for delivery in copy.deliveries:
            flag = " redelivered" if delivery.redelivered else ""
            yield f"to {delivery.session.name} {delivery.consumer}{flag} {self._at(delivery.at)}"
            if delivery.settled_at is not None:
                certain = f", certain {self._at(delivery.certain_at)}" if delivery.certain_at is not None else ""
                yield f"{delivery.settlement.name.lower()} {self._at(delivery.settled_at)}{certain}"
            elif delivery.session.ended_at is not None:
                yield f"session ended {self._at(delivery.session.ended_at)} ({delivery.session.reason})"

    def _at(self, moment: float) -> str:
        return f"{moment - self._ledger.began_at:.3f}"


def _is_done(delivery: Delivery, moment: float) -> bool:
    """Whether a delivery was certainly settled for good before a moment."""
    if delivery.settlement is not Settlement.DONE or delivery.certain_at is None:
        return False
    return (delivery.settled_at or 0.0) <= moment


def _fate(publish: Publish) -> str:
    return publish.fate.value if publish.confirming else f"without confirms, {publish.fate.value}"


def _end(fault: Disturbance) -> float:
    return fault.ended_at if fault.ended_at is not None else float("inf")


def _overlap(fault: Disturbance, start: float, end: float) -> float:
    """Seconds of a fault, recovery included, that lie between two moments."""
    return min(end, _end(fault) + RECOVERY_S) - max(start, fault.began_at)


def _can_break(fault: Disturbance, session: Session) -> bool:
    """Whether a fault can be the reason that a session ended."""
    if fault.what not in {"connector", "client *", f"client {session.client}"} or session.ended_at is None:
        return False
    return fault.began_at <= session.ended_at <= _end(fault) + NOTICE_S
