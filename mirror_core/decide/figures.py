"""What a failover plan shows beside its steps: warnings, unknowns, and changing figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

from mirror_core.decide import clocks, deletions, leaderless, ruled
from mirror_core.decide.clocks import since
from mirror_core.decide.loss import loss_of
from mirror_core.decide.loss_figures import in_words, loses, loss_figures, loss_warnings, uncopied_warning
from mirror_core.decide.offsets import START, left_in_words
from mirror_core.decide.proof import differing, differing_in_words
from mirror_core.decide.proof import in_words as in_words_of_proof
from mirror_core.decide.scope import lost_topics
from mirror_core.decide.standing import pending
from mirror_core.decide.standing import words as words_of
from mirror_core.decide.together import of_view
from mirror_core.decide.view import (
    NOTHING_HIDDEN,
    SHOWN,
    DestinationView,
    SourceView,
    Unseen,
    View,
    failed_of,
    lags_of,
    some,
    uncommitted_of,
    without_copy,
)
from mirror_core.model.mirror import Lease, PartitionState, PartitionStatus, is_fresh
from mirror_core.model.mirror_sections import OWNER
from mirror_core.model.names import Partition
from mirror_core.model.parity import UNREADABLE
from mirror_core.model.ruling import Authorizer
from mirror_core.model.run import Mode
from mirror_core.model.shell_command import option, shell_command
from mirror_core.rights.acls import OUR_TOPICS

FAILED_SHOWN: Final = 5


def warnings_of(view: View) -> Iterator[str]:
    """Gravest first: approval pages show only the first ones."""
    yield from _differs(view)
    yield from uncopied_warning(view)
    yield from words_of(view.debt)
    if isinstance(view.source, SourceView):
        yield from pending(view.debt, (view.active_run,) if view.active_run else ())
    if view.unwatched:
        yield view.unwatched
    if view.mode is Mode.UNPLANNED:
        yield from _lost_warnings(view)
    yield from clocks.warning(view)
    yield from _failed_warning(view)
    yield from leaderless.warning(view)
    if never := deletions.in_words(view.statuses):
        yield (
            f"{view.mirror.source} deleted offsets before they were copied, and {view.mirror.destination} never had "
            f"their records: {never}"
        )
    if loses(view):
        yield from loss_warnings(view)
    if isinstance(view.source, SourceView):
        yield from _source_warnings(view, view.source)
    yield from _groups_left(view)
    yield from ruled.warnings(view)
    if view.mode is Mode.PLANNED:
        yield from _standstill_warnings(view.mirror.name, view.lease, view.now_ms)
    if isinstance(view.destination, DestinationView):
        yield from _destination_warnings(view.mirror.destination, view.destination, view.there.authorizer)
    if view.unbacked:
        yield (
            f"promotion gives right(s) that nobody holds on {view.mirror.source} now: {some(view.unbacked)}. If they "
            f"were withdrawn there, run `mirrorbook sync {view.mirror.name}` first"
        )
    if view.strangers:
        yield (
            f"{some(view.strangers)}: sign(s) in to {view.mirror.source} by SCRAM, and {view.mirror.destination} knows "
            "no such user: applications could not sign in there. Create them there, with the passwords that they have: "
            f"`{_scram_user_command(view.strangers[0])}`"
        )
    for other, topics in view.beside:
        yield (
            f"mirror {other.name} carries {topics} of these topics from {other.source} to {other.destination}: it goes "
            f"on from there without a lag, and gets nothing that is written on {view.mirror.destination}. Stop it; a "
            f"failback may make topics on {other.source} anew under it"
        )
    yield from _forgers(view)
    yield from (f"{problem}: it would fail, and the run go on without it" for problem in view.hook_problems)
    yield from (f"{problem}: the run would stop there" for problem in view.command_problems)


def _scram_user_command(user: str) -> str:
    entity = ["--alter", "--entity-type", "users", *option("--entity-name", user)]
    return shell_command("kafka-configs.sh", *entity, "--add-config", "SCRAM-SHA-512=[password=...]")


def _differs(view: View) -> Iterator[str]:
    mirror, found = view.mirror, differing(view.proof, view.statuses)
    unlike = [one for one in found if not one.kind.startswith(UNREADABLE)]
    unread = [one for one in found if one.kind.startswith(UNREADABLE)]
    at_proof = f"this run will end at its proof, before anybody is stopped. `mirrorbook parity {mirror.name}` shows all"
    if words := differing_in_words(unlike, view.now_ms):
        what = f"THE COPY DIFFERS from {mirror.source} in {words}"
        unplanned = f"{what}. Applications would get what {mirror.destination} has"
        yield unplanned if view.mode is Mode.UNPLANNED else f"{what}: {at_proof}"
    if words := differing_in_words(unread, view.now_ms):
        what = f"CANNOT BE READ, and so not compared: {words}"
        unplanned = f"{what}. What is unreadable on {mirror.destination}, applications could not read either"
        yield unplanned if view.mode is Mode.UNPLANNED else f"{what}: {at_proof}"


def _standstill_warnings(mirror: str, lease: Lease | None, now_ms: int) -> Iterator[str]:
    if lease is None or not is_fresh(lease, now_ms):
        yield (
            "no data plane is running for this mirror: the whole lag is copied while writers stand still. "
            f"`mirrorbook supervise {mirror}`, or DAG mirror_replicate, copies it before"
        )
    elif lease.waits:
        yield f"copying waits, and while it does the run would, too, and writers stand still: {'; '.join(lease.waits)}"


def _forgers(view: View) -> Iterator[str]:
    for name, side in ((view.mirror.destination, view.destination), (view.mirror.source, view.source)):
        if not isinstance(side, Unseen) and side.state_writers:
            yield (
                f"{some(side.state_writers)} may write or delete {OUR_TOPICS}_state on {name}: whoever does that "
                f"decides which rights are given and taken. Deny it on topics that begin with {OUR_TOPICS}"
            )


def _failed_warning(view: View) -> Iterator[str]:
    lacking = without_copy(view)
    failed = [p for p in failed_of(view) if p not in lacking]
    if not failed:
        return
    listed = [f"{p}{_where(view.statuses[p])}" for p in failed[:FAILED_SHOWN]]
    more = f"; and {len(failed) - FAILED_SHOWN} more" if len(failed) > FAILED_SHOWN else ""
    yield (
        f"{len(failed)} partition(s) FAILED and will be promoted as they are, without their newer records: "
        f"{'; '.join(listed)}{more}"
    )


def _where(status: PartitionStatus) -> str:
    at = "" if status.failed_at is None else f" at offset {status.failed_at}"
    return f"{at} ({status.reason})"


def _source_warnings(view: View, source: SourceView) -> Iterator[str]:
    if source.reappeared:
        yield source.reappeared
    if not source.authorizer and not view.here.foreign:
        yield (
            f"{view.mirror.source} {view.here.authorizer.without_acls}: nothing can stop a writer there. Stop all "
            "producers; the run relies on stillness"
        )
    for topic in sorted({p.topic for p in view.statuses} - set(source.topics) - source.hidden.topics):
        yield f"topic {topic} no longer exists or matches on {view.mirror.source}: it is promoted as it is"
    if source.leaderless:
        yield f"no leader for {some(source.leaderless)} on {view.mirror.source}: ends and lag are unknown"
    if source.transactions:
        yield (
            f"open transactions on {view.mirror.source} ({some(source.transactions)}): the fence waits until "
            "they are over, at most their transaction timeout; and while it stands, no producer of these ids can write "
            "anything there, other topics included"
        )


def _groups_left(view: View) -> Iterator[str]:
    seen, left = isinstance(view.source, SourceView), view.groups_left
    others = view.source.other_groups if isinstance(view.source, SourceView) else left.others if left else ()
    if others:
        as_of = "" if seen else ", as of the last sync"
        yield (
            f"groups of kinds that are not synced will not be there on {view.mirror.destination}{as_of}: "
            f"{some(others)}. Set where they start by hand, or they may leave records out"
        )
    if words := left_in_words(uncommitted_of(view)):
        yield (
            f"offsets of groups could not be committed on {view.mirror.destination}: {words}. Set them there by hand, "
            "or these groups may leave records out, or repeat some"
        )


def _destination_warnings(name: str, destination: DestinationView, rules: Authorizer) -> Iterator[str]:
    if not destination.authorizer and rules is not Authorizer.FOREIGN:
        yield f"{name} {rules.without_acls}: nothing keeps applications from writing there too early"
    if few := destination.few_in_sync:
        listed = some([f"{one.topic} ({one.in_sync} of {one.needed})" for one in few])
        yield (
            f"fewer replicas are in sync on {name} than min.insync.replicas asks for after promotion: {listed}. Until "
            "brokers are back, producers with acks=all cannot write to partitions of theirs"
        )
    if destination.joined:
        yield (
            f"groups with members on {name} keep what they have committed there, whatever they did on the source: "
            f"{some(destination.joined)}. Stop those consumers; dead ones are given up after their session timeout"
        )
    if destination.groups_unseen:
        yield (
            f"some brokers of {name} did not report their groups in time: what they have committed there, and whether "
            "they have members, is not known"
        )
    if destination.groups_unread:
        yield (
            f"{destination.groups_unread} group(s) on {name} could not be asked about, or not in time: what "
            "they have committed there, and whether they have members, is not known"
        )
    yield from destination.rights[:SHOWN]
    if len(destination.rights) > SHOWN:
        yield f"{len(destination.rights) - SHOWN} more remarks on rights"


def _lost_warnings(view: View) -> Iterator[str]:
    mirror = view.mirror
    if isinstance(view.source, SourceView):
        yield (
            f"{mirror.source} answers: --mode planned loses nothing, this one gives up whatever {mirror.source} has "
            "acknowledged and is not copied yet"
        )
    if mirror.begins:
        yield (
            f"failback {mirror.homecoming} was broken off before it had made all of this way home: of rights, settings "
            f"and groups {mirror.destination} has what it had at the failover; a right that {mirror.source} granted "
            "since is missing there, and one that it withdrew since the failback began may be given"
        )
    if view.continues is not None:
        yield f"run {view.continues} ends, and this one goes on from where it was: its fence stays" + (
            f"; all that {mirror.source} had acknowledged was copied behind it" if view.drained else ""
        )
    if view.conducted:
        yield (
            f"run {view.continues} is {view.conducted}: that process loses the mirror to this run, and whatever it "
            f"could still copy from {mirror.source} with it"
        )
    if isinstance(view.destination, DestinationView) and view.destination.authorizer and not view.given:
        yield (
            f"no rights of applications are staged, so promotion gives none on {mirror.destination}: if they need any, "
            "grant them there by hand. `mirrorbook sync`, or DAG mirror_sync, stages them while the source lives"
        )
    hidden = view.destination.hidden if isinstance(view.destination, DestinationView) else NOTHING_HIDDEN
    if hidden.topics:
        yield f"{hidden.why}. Left out, and nobody gets any rights on them by this: {some(sorted(hidden.topics))}"
    made = {p.topic for p, status in view.statuses.items() if status.destination_topic_id}
    for topic in sorted(lost_topics(view) - hidden.topics - made):
        yield (
            f"topic {topic} was never created on {mirror.destination}: it is left out; `mirrorbook mirror describe "
            f"{mirror.name}` says why"
        )
    for topic in sorted((lost_topics(view) - hidden.topics) & made):
        yield (
            f"topic {topic} is gone from {mirror.destination}, or another one stands in its place: it is left out, and "
            "nobody gets any rights on it by this"
        )
    unready = sorted(p for p, s in view.statuses.items() if s.state in (PartitionState.UNKNOWN, _ALIGNING))
    if unready:
        yield f"initial copy not finished, and promoted with what they hold: {some(unready)}"


_ALIGNING: Final = PartitionState.LOG_ALIGNMENT


def unknown_of(view: View) -> Iterator[str]:
    # No error text here: it goes into the plan's hash, and must read the same when nothing has changed.
    if isinstance(view.source, Unseen) or view.mode is Mode.UNPLANNED:
        yield f"everything on {view.mirror.source}: log ends, lag, groups, open transactions, loss"
    if isinstance(view.destination, Unseen):
        yield f"everything on {view.mirror.destination}: positions, groups"


def figures_of(view: View) -> Iterator[tuple[str, str]]:
    if view.owner:
        yield OWNER, view.owner
    left = frozenset(leaderless.left_behind(view))
    lags = [lag for partition, lag in lags_of(view) if partition not in left]
    known = [lag for lag in lags if lag is not None]
    yield "partitions", str(len(view.statuses))
    yield "rights given at promotion", "unknown" if view.given is None else str(len(view.given))
    yield "lag in offsets", str(sum(known)) if len(known) == len(lags) else "unknown"
    yield from leaderless.figure(view)
    yield "seconds without writes, predicted", _predicted(view)
    if isinstance(view.destination, DestinationView):
        ids = {name: topic.id for name, topic in view.destination.topics.items()}
        yield "proved equal before", in_words_of_proof(view.proof, view.destination.positions, ids, view.now_ms)
    if isinstance(view.source, Unseen):
        yield "source", view.source.reason
    yield from loss_figures(view)
    if loses(view):
        yield from of_view(view)
    if isinstance(view.destination, Unseen):
        yield "destination", view.destination.reason
    for name, words in view.hooks.items():
        yield f"switch hook {name}", words
    if view.lease is not None:
        state = "released" if view.lease.released else "held"
        yield (
            "data plane",
            f"lease {state} by {view.lease.owner}, last heartbeat {since(view.now_ms, view.lease.beat_ms)}",
        )
    if isinstance(view.source, SourceView):
        unread = len(set(view.source.groups) - set(view.source.committed))
        if unread:
            yield "groups not looked at in time", str(unread)


def partition_figures(view: View) -> Iterator[tuple[str, str]]:
    left = frozenset(leaderless.left_behind(view))
    losses = loss_of(view).partitions if left or loses(view) else {}
    lags = {**(dict.fromkeys(losses) if loses(view) else {}), **dict(lags_of(view))}

    def rank(partition: Partition) -> tuple[bool, int, Partition]:
        bad = losses[partition].missing if loses(view) else lags[partition]
        return bad is not None, -(bad or 0), partition

    for partition in nsmallest(SHOWN, lags, key=rank):  # of tens of thousands: no key for each is kept
        if partition not in view.statuses:
            yield str(partition), in_words(losses[partition])
            continue
        lag = lags[partition]
        words = f"{view.statuses[partition].state}, lag {'unknown' if lag is None else lag}"
        behind = f"; no leader on {view.mirror.source}, {leaderless.LEFT}" if partition in left else ""
        shown = loses(view) or partition in left
        yield str(partition), words + behind + (f"; {in_words(losses[partition])}" if shown else "")


def _predicted(view: View) -> str:
    known = view.forecast
    return "unknown (no earlier run, and no drill)" if known is None else f"{known.seconds:.1f} ({known.basis})"


def group_figures(view: View) -> Iterator[tuple[str, str]]:
    without = Counter(one.group for one in uncommitted_of(view) if one.stands is None)
    if isinstance(view.source, Unseen) or view.mode is Mode.UNPLANNED:
        if isinstance(view.destination, DestinationView):
            synced, committed = _synced(view), view.destination.committed
            for group in sorted(committed.keys() | without.keys())[:SHOWN]:
                offsets = committed.get(group, {})
                behind = sum(max(0, view.destination.positions.get(p, o) - o) for p, o in offsets.items())
                repeats = [f"0 to {behind} record(s) read again"] if offsets else []
                yield group, "; ".join([*repeats, *_starts(without[group]), synced])
        return
    here = view.destination
    known = {} if isinstance(here, Unseen) or here.groups_unseen else here.committed
    partly = isinstance(here, Unseen) or here.groups_unseen or here.groups_unread
    for group, offsets in sorted(view.source.committed.items())[:SHOWN]:
        if partly and group not in known:
            yield group, f"what {view.mirror.destination} has of it is not known; 0 read again after the final sync"
            continue
        there = known.get(group, {})
        again = sum(max(0, o - there[p]) for p, o in offsets.items() if p in there)
        absent = sum(p not in there for p in offsets)
        missing = f", {absent} partition(s) not synced yet" if absent else ""
        words = f"{again} record(s) would be read again as of the last sync{missing}; 0 after the final sync"
        yield group, "; ".join([words, *_starts(without[group])])


def _starts(without: int) -> list[str]:
    return [f"no offset, {without} time(s): starts there {START}"] if without else []


def _synced(view: View) -> str:
    """One age for all groups: their offsets are synced together."""
    if view.groups is None:
        return "when it was synced last is unknown"
    return f"as committed {since(view.now_ms, view.groups.synced_ms)}"
