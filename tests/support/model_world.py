"""Two copiers of one partition, a broker and a clock: what may go wrong, and what must hold all the same."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from mirror_core.copy.partition_states import CopyState
from mirror_core.decide.gaps_and_resume import find_turn
from mirror_core.model.mirror import FailureKind
from tests.support.model_broker import Broker, Connection, Markers, fully
from tests.support.model_copier import ModelCopier, Source

ATTEMPTS = 7
"""Interrupted ones at one gap that wear its numbers out."""
_PATIENCE = 2_000
"""Turns of both loops, of 40 ms each, in which all must come to an end once nothing goes wrong any more."""
_WAITS = 180
_PASSES = {"tick": 0.03, "nap": 0.25, "sleep": 1.1}
"""Seconds that go by."""
_SPOILS = frozenset({"refused", "denied", "unheard"})
_TELLS = frozenset({FailureKind.FOREIGN, FailureKind.DIVERGED, FailureKind.GAP_LIMIT})
"""Kinds of failure that say that the copy itself is wrong."""


class Weather(Enum):
    """What may go wrong. In each of them copiers break off, start anew, sleep, and are refused batches."""

    CALM = "calm"
    """A request is carried out when it is sent. Of a copier that breaks off, data and an owner's markers may be carried
    out later, too: then nothing fails. (What is accepted: a single marker between a newcomer's look and its own.)"""
    FORGETFUL = "forgetful"
    """The broker forgets the producer, at any moment; and batches are refused for good."""
    LATE = "late"
    """Any request may be carried out at any time."""
    WILD = "wild"
    """Both."""


class Broken(AssertionError):
    """What must hold does not."""


class World:
    def __init__(self, source: Source, weather: Weather) -> None:
        self.source, self.weather = source, weather
        self.expected = source.expected()
        self.broker = Broker()
        self.readable = 1
        self.now = 1_000.0
        self.copiers = [ModelCopier(source, self.broker, epoch, self._clock) for epoch in (1, 2)]
        self.left: list[Connection] = []
        """Of copiers that broke off."""
        self.held = [False, False]
        """What this copier sends is carried out after it has broken off, or never."""
        self.breaks = 0
        self.told = set[FailureKind]()
        """Verdicts: the partition is FAILED for whoever reads them, whatever another copier believes."""
        self.late = weather in (Weather.LATE, Weather.WILD)
        self.forgets = weather in (Weather.FORGETFUL, Weather.WILD)

    def _clock(self) -> float:
        return self.now

    # -- moves ---------------------------------------------------------------------------------------------------

    def move(self, name: str, who: int) -> None:
        """One thing happens. What cannot happen now does not."""
        happens: Callable[[int], None] | None = getattr(self, f"_on_{name}", None)
        if name in _PASSES:
            self.now += _PASSES[name]
        elif name in _SPOILS:
            self.copiers[who].spoilt = name if name != "denied" or self.forgets else ""
        elif happens is not None:
            happens(who)
        else:
            self._act(name, who)
        self.check()

    def _on_turn(self, who: int) -> None:
        while find_turn(self.copiers[who].epoch, int(self.now * 1000)) is None:
            self.now += 0.02

    def _on_grow(self, who: int) -> None:
        self.readable = min(self.readable + 1, len(self.source.parts))

    def _on_hold(self, who: int) -> None:
        self.held[who] = True

    def _on_break(self, who: int) -> None:
        self._break(who, anew=False)

    def _on_restart(self, who: int) -> None:
        self._break(who, anew=True)

    def _on_parted(self, who: int) -> None:
        self.copiers[who].source_lost()

    def _on_drop(self, who: int) -> None:
        self.left = self.left[1:]

    def _on_carry(self, who: int) -> None:
        copier = self.copiers[who]
        connection = copier.marks if copier.marks.requests else copier.data
        if self.late and connection.requests:
            self.broker.handle(connection)

    def _act(self, name: str, who: int) -> None:
        copier, other = self.copiers[who], self.copiers[1 - who]
        if copier.synchronous:
            name = "align"
        if name == "fill":
            wakes = (copier.asleep or copier.slept) and (copier.wrote or copier.owned)
            if not self.late and wakes and other.newcomer_looks:
                return  # accepted: who owns the gap wakes up between a newcomer's look and its marker
            copier.fill()
        elif name == "align":
            copier.align(self.readable)
        elif name == "fetch":
            copier.fetch(self.readable)
        elif name == "loop":
            self.loop(who)
        else:
            {"take": copier.take, "send": copier.send, "answers": copier.answers}[name]()
        if not self.late:
            self._at_once(who)

    def _on_forget(self, who: int) -> None:
        """The broker forgets the producer while this copier is at work.

        Accepted (`docs/adr/0001`): a leader that has forgotten takes any sequence from whoever comes first. So nothing
        may be on its way then that somebody has written already, and nobody may go on from a place where others have
        written since.
        """
        if not self.forgets:
            return
        copier = self.copiers[who]
        self._break(1 - who, anew=False)
        self.left = []
        if len(self.broker.log) != copier.replicator.progress.acknowledged:
            fully(self.broker, (copier.data, copier.marks))
            self._break(who, anew=False)
        self.broker.forget()

    def _on_patience(self, who: int) -> None:
        """Time goes by with this copier at work, until it is about to take up somebody else's gap."""
        copier = self.copiers[who]
        for _ in range(_WAITS):
            self._act("fill", who)
            if copier.round is None:
                self._act("loop", who)
                self._act("fill", who)
            fully(self.broker, (copier.data, copier.marks))
            case, now = copier.case, find_turn(copier.epoch, int(self.now * 1000)) is not None
            if copier.newcomer_looks and now and case is not None and case.can_fill(self.now, 0.0):
                return
            self.now += 0.02

    def loop(self, who: int) -> None:
        """A turn of the task's loop, as far as nothing has to be waited for."""
        copier = self.copiers[who]
        copier.align(self.readable)
        if copier.synchronous:
            return
        copier.replicator.finish_if_acknowledged()
        copier.fetch(self.readable)
        copier.send()
        copier.take()
        if not self.late:
            self._at_once(who)
        copier.answers()

    def _at_once(self, who: int) -> None:
        copier = self.copiers[who]
        newest = copier.marks.requests[-1] if copier.marks.requests else None
        held = self.held[who]
        if not (held and isinstance(newest, Markers) and newest.owned):
            fully(self.broker, (copier.marks,))
        if not held:
            fully(self.broker, (copier.data,))

    def _break(self, who: int, *, anew: bool) -> None:
        copier = self.copiers[who]
        handed = copier.leaves()
        self.breaks += 1
        self.held[who] = False
        self.left += copier.disconnected()
        if anew:
            epoch = self.copiers[1 - who].epoch + 1
            self.copiers[who] = ModelCopier(self.source, self.broker, epoch, self._clock)
            if handed is not None:
                self.copiers[who].replicator.gap_claim.receive(handed)

    def _on_straggle(self, number: int) -> None:
        """A request of somebody who is gone is carried out now, or the next marker of it."""
        waiting = [connection for connection in self.left if connection.requests]
        if not waiting:
            return
        connection = waiting[number % len(waiting)]
        request = connection.requests[0]
        single = isinstance(request, Markers) and request.number == 1
        if self.late or not (single and any(copier.newcomer_looks for copier in self.copiers)):
            self.broker.handle(connection)

    # -- what must hold ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Nobody takes for copied what is not at its offset; and nobody fails without a reason."""
        for copier in self.copiers:
            one = copier.replicator
            upto = one.progress.acknowledged
            if one.state is CopyState.FAILED:
                self._excused(copier)
            elif self.broker.log[:upto] != self.expected[:upto] and not self.told & _TELLS:
                raise Broken(f"taken for copied up to {upto}: {self.broker.log[:upto]}")

    def _excused(self, copier: ModelCopier) -> None:
        failure = copier.replicator.failure
        assert failure is not None
        self.told.add(failure.kind)
        if copier.landed_elsewhere and failure.kind not in _TELLS:
            raise Broken(f"a batch landed elsewhere, and all that is said is: {failure.reason}")
        worn_out = self.breaks >= ATTEMPTS and "has used up the numbers" in failure.reason
        if self.weather is Weather.CALM and not worn_out:
            raise Broken(f"failed though nothing has gone wrong that cannot be mended: {failure.reason}")

    def comes_to_rest(self) -> None:
        """Nothing goes wrong any more: then all is copied, or the partition has failed and says so."""
        for who, copier in enumerate(self.copiers):
            while copier.newcomer_looks:  # what comes between that and its marker is accepted (`_act`, `_on_straggle`)
                fully(self.broker, (copier.marks,))
                copier.fill()
                self._at_once(who)
        for connection in self.left:
            fully(self.broker, (connection,))
        for who in (0, 1):
            if self.held[who]:
                self._break(who, anew=False)
            self.copiers[who].spoilt = ""
        self.late, self.readable = False, len(self.source.parts)
        self._rests()
        for who in (0, 1):  # a marker behind the end is seen by the next epoch
            self._break(who, anew=True)
        self._rests()
        log = self.broker.log
        if log != self.expected and not self.told & _TELLS and not (self.told and log == self.expected[: len(log)]):
            raise Broken(f"the copy is {log}, and all that is said is: {self.told}")

    def _rests(self) -> None:
        for _ in range(_PATIENCE):
            for who in (0, 1):
                fully(self.broker, (self.copiers[who].data, self.copiers[who].marks))
                self._rounds_to_their_ends()
                for name in ("loop", "fill"):
                    self._act(name, who)
                    self.check()
                self._rounds_to_their_ends()
            if all(self._at_rest(copier) for copier in self.copiers):
                break
            self.now += 0.04
        else:
            stuck = [copier.replicator for copier in self.copiers if not self._at_rest(copier)]
            raise Broken(f"nothing wakes it any more: {[(one.state, one.lost_reason) for one in stuck]}")

    def _rounds_to_their_ends(self) -> None:
        for who, copier in enumerate(self.copiers):
            while copier.round is not None:
                fully(self.broker, (copier.marks,))
                copier.fill()
                self._at_once(who)
                self.check()

    def _at_rest(self, copier: ModelCopier) -> bool:
        one = copier.replicator
        return one.state is CopyState.FAILED or (one.can_send and one.progress.acknowledged >= len(self.expected))
