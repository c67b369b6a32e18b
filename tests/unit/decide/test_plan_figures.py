"""What a failover plan shows beside its steps: numbers, what is not known, and what a person should be warned of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.failover_scope import build_scope
from mirror_core.decide.forecast_accuracy import build_forecast
from mirror_core.decide.mirror_snapshot import (
    ClusterTopic,
    CopyingState,
    MinIsrShortfall,
    MirrorSnapshot,
    StandstillForecast,
    UnseenCluster,
    join_limited,
    list_lags,
)
from mirror_core.decide.plan_figures import (
    list_partition_figures,
    list_plan_unknowns,
    list_plan_warnings,
)
from mirror_core.model.acl import Acl
from mirror_core.model.config_sections import AuthorizerConfig, AuthorizerKind
from mirror_core.model.figures import MAX_RECORDED_NAMES, FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import (
    DesiredState,
    FailureKind,
    Lease,
    NeverCopied,
    PartitionState,
)
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import KnownDifference, MirrorVerification
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import (
    Heartbeat,
    ObservedTopic,
    ObservedTransaction,
    PartitionTransaction,
    SourceObservation,
)
from mirror_core.model.sync_state import TopicSettings
from tests.support import plan_views
from tests.support.plan_views import A0, A1, B0, DESTINATION, LEASE, SOURCE, WRITE, shown, status, warned

view = plan_views.view


def test_a_healthy_mirror_is_shown_in_numbers_and_warns_of_nothing(view: MirrorSnapshot) -> None:
    assert shown(view) == {
        FigureKey.PARTITIONS: 3,
        FigureKey.RIGHTS_GIVEN: 1,
        FigureKey.LAG_OFFSETS: 37,
        FigureKey.WITHOUT_WRITES_S: None,
        FigureKey.PROVED_OFFSETS: 0,
        FigureKey.PROVABLE_OFFSETS: 123,
        FigureKey.LEASE_OWNER: "host-7",
        FigureKey.LEASE_RELEASED: False,
        FigureKey.LEASE_HEARTBEAT_S: 3.0,
    }
    assert warned(view) == ""
    assert list(list_plan_unknowns(view)) == []
    drilled = shown(replace(view, forecast=StandstillForecast(2.14, "last drill")))
    assert (drilled[FigureKey.WITHOUT_WRITES_S], drilled[FigureKey.FORECAST_BASIS]) == (2.14, "last drill")


@pytest.mark.parametrize(("rate", "end", "seconds"), [
    (None, 1_093, 2.1),
    (None, 1_094, None),
    (50_000.0, 90_000, 2.1),
    (50_000.0, 110_000, None),
])  # fmt: skip
def test_seconds_without_writes_are_predicted_only_for_a_copy_that_keeps_up(
    view: MirrorSnapshot, rate: float | None, end: int, seconds: float | None
) -> None:
    """The whole lag is copied while nobody may write, and how fast is not known."""
    source = replace(SOURCE, stable_ends={A0: Offset(end), A1: Offset(20), B0: Offset(10)})
    observed = SourceObservation(mirror=MirrorName("orders"), at_ms=9_000, offsets_per_s=rate)
    forecast = StandstillForecast(2.1, "last run", {"fence": 1.0, "drain": 0.5})
    planned = replace(view, forecast=forecast, source_observation=observed, source=source)
    assert shown(planned)[FigureKey.WITHOUT_WRITES_S] == seconds
    told = build_forecast(planned)
    assert (told.seconds, set(told.steps)) == (seconds, {"fence", "drain"} if seconds else {"fence"})
    assert ("last run took 2.1 s" in warned(planned)) == (seconds is None)
    dead = replace(planned, mode=RunMode.UNPLANNED)
    assert shown(dead)[FigureKey.FIRST_STEP_TO_PROMOTION_S] == 2.1, "it copies nothing"


def test_a_data_plane_is_as_alive_as_its_heartbeat_was_when_the_state_was_read(view: MirrorSnapshot) -> None:
    """Clusters that answer slowly make a plan take longer than a heartbeat stays fresh."""
    late = replace(view, now_ms=LEASE.heartbeat_ms + 12_000)
    assert "no data plane runs" in warned(late)
    slow = replace(late, took_ms=9_000)
    assert "no data plane runs" not in warned(slow)
    assert shown(slow)[FigureKey.LEASE_HEARTBEAT_S] == 3.0


def test_one_unknown_lag_makes_the_sum_unknown_and_is_listed_first(view: MirrorSnapshot) -> None:
    partial = replace(view, source=replace(SOURCE, stable_ends={A0: Offset(100), A1: Offset(50)}))
    assert list(list_lags(partial)) == [(A0, 7), (A1, 30), (B0, None)]
    assert shown(partial)[FigureKey.LAG_OFFSETS] is None
    assert list(list_partition_figures(partial)) == [
        (name, {FigureKey.PARTITION_STATE: PartitionState.MIRRORING, FigureKey.LAG_OFFSETS: lag})
        for name, lag in (("b-0", None), ("a-1", 30), ("a-0", 7))
    ]
    lost = replace(view, destination=replace(DESTINATION, positions={A0: Offset(93)}))
    assert [lag for _, lag in list_lags(lost)] == [7, None, None]


@pytest.mark.parametrize("side", ["source", "destination"])
def test_the_lag_of_a_topic_that_was_made_anew_on_either_side_is_unknown(view: MirrorSnapshot, side: str) -> None:
    """The other log may end anywhere, and hide what others lag by."""
    anew = {"a": ClusterTopic(id="anew", partitions=2), "b": SOURCE.topics["b"]}
    changed = (
        replace(view, source=replace(SOURCE, topics=anew))
        if side == "source"
        else replace(view, destination=replace(DESTINATION, topics={**anew, "b": DESTINATION.topics["b"]}))
    )
    assert dict(list_lags(changed)) == {**dict(list_lags(view)), A0: None, A1: None}
    assert shown(changed)[FigureKey.LAG_OFFSETS] is None


def test_a_copy_that_is_ahead_hides_no_other_one_s_lag(view: MirrorSnapshot) -> None:
    ahead = replace(view, destination=replace(DESTINATION, positions={**DESTINATION.positions, B0: Offset(10**6)}))
    assert dict(list_lags(ahead))[B0] == SOURCE.stable_ends[B0] - 10**6
    assert shown(ahead)[FigureKey.LAG_OFFSETS] == 37


def test_what_promotion_does_with_rights_is_warned_of_and_only_the_first_of_many(view: MirrorSnapshot) -> None:
    remarks = tuple(Finding("grant_to_everybody", number) for number in range(MAX_RECORDED_NAMES + 2))
    few = list_plan_warnings(replace(view, destination=replace(DESTINATION, grant_warnings=remarks[:2])))
    assert list(few) == list(remarks[:2])
    many = list(list_plan_warnings(replace(view, destination=replace(DESTINATION, grant_warnings=remarks))))
    assert many == [*remarks[:MAX_RECORDED_NAMES], Finding("more_grant_remarks", view.mirror.destination, count=2)]


def test_remarks_on_rights_come_together_behind_what_decides(view: MirrorSnapshot) -> None:
    remark, hook = Finding("grants_by_prefix", "west", prefixes=["a"], principals=["b"]), Finding("hook_unusable")
    destination = replace(DESTINATION, grant_warnings=(remark,), groups_unread=3)
    quota = replace(view.quotas, missing=("a",))
    changed = replace(view, destination=destination, unusable_hooks=(hook,), quotas=quota)
    codes = [finding.code for finding in list_plan_warnings(changed)]
    assert codes == ["groups_unread", "hook_unusable", "client_quotas_differ", "grants_by_prefix"]


def test_equal_lags_are_listed_by_name_and_only_the_first_of_many(view: MirrorSnapshot) -> None:
    many = [Partition("a", number) for number in range(MAX_RECORDED_NAMES + 5)]
    source = replace(SOURCE, stable_ends=dict.fromkeys(many, Offset(5)))
    destination = replace(DESTINATION, positions=dict.fromkeys(many, Offset(5)))
    listed = list(
        list_partition_figures(
            replace(view, statuses={p: status(p) for p in many}, source=source, destination=destination)
        )
    )
    assert [name for name, _ in listed] == [str(p) for p in many[:MAX_RECORDED_NAMES]]


def test_topics_that_could_not_be_written_after_promotion_are_named(view: MirrorSnapshot) -> None:
    few = (MinIsrShortfall("a", in_sync=1, needed=2), MinIsrShortfall("b", in_sync=2, needed=3))
    told = warned(replace(view, destination=replace(DESTINATION, min_isr_shortfalls=few)))
    assert "fewer replicas are in sync on west than min.insync.replicas asks for" in told
    assert "a (1 of 2), b (2 of 3)" in told


def test_a_side_that_is_not_seen_says_why_in_the_figures_and_what_is_unknown_without_a_reason(
    view: MirrorSnapshot,
) -> None:
    dead = replace(view, source=UnseenCluster("refused after 3 s"))
    assert shown(dead)[FigureKey.SOURCE_PROBLEM] == "refused after 3 s"
    assert shown(dead)[FigureKey.LOST_OFFSETS] is None
    assert list(list_plan_unknowns(dead)) == [Finding("source_facts_unknown", "east")]
    assert FigureKey.DESTINATION_PROBLEM not in shown(dead)
    blind = replace(view, destination=UnseenCluster("timed out"))
    assert shown(blind)[FigureKey.DESTINATION_PROBLEM] == "timed out"
    assert list(list_plan_unknowns(blind)) == [Finding("destination_facts_unknown", "west")]
    assert {FigureKey.SOURCE_PROBLEM, FigureKey.LOST_OFFSETS}.isdisjoint(shown(blind))


@pytest.mark.parametrize(
    ("lease", "now_ms", "runs"),
    [
        (LEASE, 109_999, True),
        (LEASE, 110_001, False),
        (replace(LEASE, released=True), 101_000, False),
        (None, 101_000, False),
    ],
)
def test_without_a_living_data_plane_the_whole_lag_waits_for_the_fence(
    view: MirrorSnapshot, lease: Lease | None, now_ms: int, runs: bool
) -> None:
    words = warned(replace(view, lease=lease, now_ms=now_ms))
    assert ("no data plane runs" not in words) is runs
    assert (f"`mirrorbook supervise {view.mirror.name}`" not in words) is runs


@pytest.mark.parametrize(
    ("mode", "waits", "said"),
    [(RunMode.PLANNED, True, True), (RunMode.UNPLANNED, True, False), (RunMode.PLANNED, False, False)],
)
def test_what_copying_waits_for_is_warned_of_where_writers_would_wait_for_it(
    view: MirrorSnapshot, mode: RunMode, waits: bool, said: bool
) -> None:
    lease = replace(LEASE, wait_reasons=("broker 2 does not answer",) if waits else ())
    assert ("nobody can write: broker 2 does not answer" in warned(replace(view, mode=mode, lease=lease))) is said


def test_the_lag_of_a_mirror_that_has_recorded_no_partition_is_unknown(view: MirrorSnapshot) -> None:
    assert shown(replace(view, statuses={}))[FigureKey.LAG_OFFSETS] is None


def test_the_lease_is_shown_as_it_is(view: MirrorSnapshot) -> None:
    assert FigureKey.LEASE_OWNER not in shown(replace(view, lease=None))
    released = shown(replace(view, lease=replace(LEASE, released=True), now_ms=99_000))
    assert (released[FigureKey.LEASE_OWNER], released[FigureKey.LEASE_RELEASED]) == ("host-7", True)
    assert released[FigureKey.LEASE_HEARTBEAT_S] == 0.0, "what NTP leaves"
    unknown = shown(replace(view, lease=LEASE, now_ms=LEASE.heartbeat_ms - 2_000))
    assert (unknown[FigureKey.LEASE_RELEASED], unknown[FigureKey.LEASE_HEARTBEAT_S]) == (False, None)


def test_what_a_person_should_know_before_approving(view: MirrorSnapshot) -> None:
    source = replace(SOURCE, authorizer=False, transactions=("tx-1", "tx-2"), topics={"a": SOURCE.topics["a"]})
    warnings = [*list_plan_warnings(replace(view, source=source, destination=replace(DESTINATION, authorizer=False)))]
    assert Finding("source_without_acls", "east", authorizer=AuthorizerKind.KAFKA) in warnings
    assert Finding("topics_gone_from_source", "east", topics=["b"]) in warnings
    assert Finding("transactions_open", "east", transactions=["tx-1", "tx-2"]) in warnings
    assert Finding("destination_without_acls", "west", authorizer=AuthorizerKind.KAFKA) in warnings
    assert "nobody_copies" not in {warning.code for warning in warnings}


def test_a_paused_mirror_is_said_to_copy_nothing_also_while_its_data_plane_lives(view: MirrorSnapshot) -> None:
    paused = replace(view, mirror=replace(view.mirror, desired=DesiredState.PAUSED))
    [warning] = [warning for warning in list_plan_warnings(paused) if warning.code == "nobody_copies"]
    assert warning.values["copying"] == CopyingState.PAUSED


def test_what_cannot_be_fenced_is_named_as_mirrorbook_yaml_has_it(view: MirrorSnapshot) -> None:
    none = AuthorizerConfig(authorizer=AuthorizerKind.NONE)
    open_both = replace(view, source=replace(SOURCE, authorizer=False), source_authorizer=none)
    open_destination = replace(DESTINATION, authorizer=False)
    warnings = [*list_plan_warnings(replace(open_both, destination=open_destination, destination_authorizer=none))]
    assert "has no authorizer" not in "".join(map(str, warnings)), "brokers were not asked"
    assert Finding("source_without_acls", "east", authorizer=AuthorizerKind.NONE) in warnings
    assert Finding("destination_without_acls", "west", authorizer=AuthorizerKind.NONE) in warnings


def test_what_was_deleted_before_it_was_copied_is_said_behind_what_failed_and_before_the_source(
    view: MirrorSnapshot,
) -> None:
    never = NeverCopied(offsets=30, since_ms=1, newest_ms=1, first=Offset(50), next=Offset(80))
    statuses = {
        **view.statuses,
        A0: replace(status(A0), never_copied=never),
        A1: replace(status(A1, PartitionState.FAILED), reason="damaged"),
    }
    failed, deleted, open_writes = list_plan_warnings(
        replace(view, statuses=statuses, source=replace(SOURCE, authorizer=False))
    )
    assert (failed.code, failed.values["count"]) == ("partitions_failed", 1)
    assert (deleted.code, deleted.subject, deleted.values["destination"]) == ("never_copied", "east", "west")
    assert deleted.values["listed"] == (
        "30 offsets of 1 partition, first found 1970-01-01 00:00:00 UTC: a-0 (30, the last of them [50, 80))"
    )
    assert (open_writes.code, open_writes.subject) == ("source_without_acls", "east")


def test_a_failed_partition_is_named_with_its_offset_and_its_reason(view: MirrorSnapshot) -> None:
    failed = replace(status(A1, PartitionState.FAILED), reason="damaged", failed_at=Offset(0))
    nowhere = replace(failed, failed_at=None)
    for damaged, listed in ((failed, "a-1 at offset 0 (damaged)"), (nowhere, "a-1 (damaged)")):
        assert [*list_plan_warnings(replace(view, statuses={**view.statuses, A1: damaged}))] == [
            Finding("partitions_failed", view.mirror.name, count=1, lost=None, unknown=1, failures=[listed], more=0)
        ]


@pytest.mark.parametrize("is_source_seen", [True, False])
def test_a_topic_that_was_deleted_on_the_source_lacks_no_newer_records(
    view: MirrorSnapshot, *, is_source_seen: bool
) -> None:
    deleted = replace(status(B0, PartitionState.FAILED), reason="deleted", kind=FailureKind.GONE)
    source = replace(SOURCE, topics={"a": SOURCE.topics["a"]}) if is_source_seen else UnseenCluster("dead")
    gone = replace(view, statuses={**view.statuses, B0: deleted}, source=source, mode=RunMode.UNPLANNED)

    def list_said(snapshot: MirrorSnapshot) -> dict[str, Finding]:
        return {finding.code: finding for finding in list_plan_warnings(snapshot)}

    said = list_said(gone)
    assert "partitions_failed" not in said
    assert (said["topics_gone_from_source"].subject, said["topics_gone_from_source"].values["topics"]) == (
        "east",
        ("b",),
    )
    damaged = list_said(replace(gone, statuses={**gone.statuses, B0: replace(deleted, kind=FailureKind.CORRUPT)}))
    assert "partitions_failed" in damaged, "records were there that it lacks"
    assert ("topics_gone_from_source" in damaged) is is_source_seen
    seen = SourceObservation(mirror=MirrorName("m"), at_ms=1, topics=(ObservedTopic(topic="b", ends=(7,), id="anew"),))
    anew = replace(gone, source_observation=seen, source=SOURCE if is_source_seen else UnseenCluster("dead"))
    assert "topics_gone_from_source" not in list_said(anew), "there is another one of its name"
    shown_again = list_said(replace(gone, source=SOURCE))
    assert "partitions_failed" in shown_again, "its brokers were behind: there are newer records"
    assert "topics_gone_from_source" not in shown_again
    elsewhere = replace(gone, destination=replace(DESTINATION, topics={"a": DESTINATION.topics["a"]}))
    assert "topics_gone_from_source" not in list_said(elsewhere), "nothing of it is promoted"


def test_many_failed_partitions_are_one_warning_and_push_no_other_one_out_of_sight(view: MirrorSnapshot) -> None:
    many = {p: replace(status(p, PartitionState.FAILED), reason="cut") for p in (Partition("a", n) for n in range(900))}
    lines = warned(replace(view, statuses=many, source=replace(SOURCE, authorizer=False))).split("\n")
    assert lines[0].startswith("900 partitions FAILED")
    assert lines[0].endswith("a-4 (cut); and 895 more")
    assert any("east has no authorizer" in line for line in lines[:3])


@pytest.mark.parametrize(("count", "words"), [(0, ""), (1, "0"), (10, "0, 1, 2, 3, 4, 5, 6, 7, 8, 9")])
def test_a_short_list_is_said_as_a_whole(count: int, words: str) -> None:
    assert join_limited(range(count)) == words


def test_a_long_list_is_cut_after_ten() -> None:
    assert join_limited(iter(range(13))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 more"


@pytest.mark.parametrize("mode", RunMode)
def test_hooks_are_shown_and_those_that_would_fail_are_warned_of(view: MirrorSnapshot, mode: RunMode) -> None:
    absent = Finding("hook_program_absent", "dns", program="point-dns")
    hooked = replace(view, mode=mode, hooks={"dns": "command point-dns"}, unusable_hooks=(absent,))
    assert shown(hooked)[FigureKey.SWITCH_HOOKS] == {"dns": "command point-dns"}
    assert absent in list_plan_warnings(hooked)
    assert FigureKey.SWITCH_HOOKS not in shown(view)


def test_without_the_source_the_plan_says_what_would_be_lost_by_three_clocks(view: MirrorSnapshot) -> None:
    seen = SourceObservation(
        mirror=view.mirror.name,
        at_ms=101_000,
        topics=(ObservedTopic(topic="a", ends=(100, 50)), ObservedTopic(topic="b", ends=(10,), offline=(0,))),
        transactions=(
            ObservedTransaction(
                id="tx",
                producer_id=1,
                state="Ongoing",
                parts=(
                    PartitionTransaction(partition=A0, first=Offset(90)),
                    PartitionTransaction(partition=A1, first=Offset(30)),
                ),
            ),
        ),
        transactions_ms=101_000,
    )
    beats = tuple(Heartbeat(partition=n, number=9, at_ms=100_500 + n, mirror="m", driver="d") for n in (0, 1))
    dead = replace(
        view, source=UnseenCluster("dead"), source_observation=seen, destination=replace(DESTINATION, heartbeats=beats)
    )
    told = shown(dead)
    assert (told[FigureKey.LOST_OFFSETS], told[FigureKey.SOURCE_SEEN_S]) == (37, 2.0)
    assert FigureKey.LOST_UNKNOWN_PARTITIONS not in told
    assert told[FigureKey.HEARTBEAT_AGES_S] == {"0": 2.5, "1": 2.499}
    assert told[FigureKey.HEARTBEAT_NUMBERS] == {"0": 9, "1": 9}
    assert (told[FigureKey.CUT_TRANSACTIONS], told[FigureKey.TRANSACTIONS_SEEN_S]) == (1, 2.0)
    assert dict(list_partition_figures(dead))["a-0"] == {
        FigureKey.PARTITION_STATE: PartitionState.MIRRORING,
        FigureKey.LAG_OFFSETS: None,
        FigureKey.MIRROR_POSITION: 93,
        FigureKey.MISSING_OFFSETS: 7,
        FigureKey.END_SEEN_S: 2.0,
    }
    assert [name for name, _ in list_partition_figures(dead)] == ["a-1", "a-0", "b-0"], "what misses most comes first"
    words = warned(dead)
    cut = Finding("transaction_in_doubt", "tx", state="Ongoing", arrival="partial", copied=["a-0"], not_copied=["a-1"])
    assert cut in list_plan_warnings(dead)
    assert "east named no leader for b-0" in words
    assert "no heartbeat" not in words
    assert "no heartbeat of east has arrived on west" in warned(replace(dead, destination=DESTINATION))
    unplanned = replace(dead, source=SOURCE, mode=RunMode.UNPLANNED)
    assert shown(unplanned)[FigureKey.LOST_OFFSETS] == 37, "an answering source is only looked at"
    assert FigureKey.LOST_OFFSETS not in shown(replace(unplanned, mode=RunMode.PLANNED))
    drained = replace(dead, is_drained=True)
    assert (shown(drained)[FigureKey.LOST_OFFSETS], shown(drained)[FigureKey.SOURCE_DRAINED]) == (0, True)
    bad = {**drained.statuses, A1: replace(status(A1, PartitionState.FAILED), reason="damaged")}
    assert shown(replace(drained, statuses=bad))[FigureKey.LOST_OFFSETS] == 30, "what FAILED partitions miss"
    assert FigureKey.SOURCE_SEEN_S not in shown(drained)
    assert "cut in half" not in warned(drained)


def test_a_partition_that_nobody_leads_is_unknown_alone(view: MirrorSnapshot) -> None:
    one = replace(SOURCE, stable_ends={A0: Offset(100), A1: Offset(50)}, offline_partitions=(B0,))
    assert "no leader for b-0 on east: ends and lag are unknown" in warned(replace(view, source=one))
    assert list(list_plan_unknowns(replace(view, source=one))) == []


def test_who_approves_to_go_on_from_a_run_knows_who_conducts_it(view: MirrorSnapshot) -> None:
    """That may be a colleague who is still copying what this plan gives up."""
    alone = replace(view, mode=RunMode.UNPLANNED, continues_run="m-failover-1")
    more = {*list_plan_warnings(replace(alone, conducted_by="conducted by ann"))} - {*list_plan_warnings(alone)}
    assert more == {Finding("conductor_loses_mirror", "m-failover-1", conductor="conducted by ann", source="east")}


@pytest.mark.parametrize("authorizer", [True, False])
@pytest.mark.parametrize("given", [(), (WRITE,)])
def test_an_unplanned_failover_without_staged_rights_says_that_it_gives_none(
    view: MirrorSnapshot, given: tuple[Acl, ...], authorizer: bool
) -> None:
    here = replace(DESTINATION, authorizer=authorizer)
    known = given if authorizer else None
    lost = replace(view, source=UnseenCluster("dead"), mode=RunMode.UNPLANNED, promotion_grants=known, destination=here)
    said = any("no rights of applications are staged" in warning for warning in map(str, list_plan_warnings(lost)))
    assert said is (authorizer and not given)


def test_a_right_that_the_source_does_not_grant_now_is_named_before_it_is_given(view: MirrorSnapshot) -> None:
    assert "nobody holds" not in warned(view)
    (line,) = [w for w in map(str, list_plan_warnings(replace(view, unbacked_grants=(WRITE,)))) if "nobody holds" in w]
    assert "on east now: ALLOW WRITE on TOPIC literal 'a' for User:app" in line
    assert "`mirrorbook sync m` first" in line


def test_rights_are_unknown_where_nothing_is_known_of_the_destination(view: MirrorSnapshot) -> None:
    assert shown(replace(view, promotion_grants=None))[FigureKey.RIGHTS_GIVEN] is None


def test_users_that_only_the_source_knows_are_named_with_what_makes_them(view: MirrorSnapshot) -> None:
    named = replace(view, unknown_scram_users={"app": ("SCRAM-SHA-256",), "bill": ("SCRAM-SHA-512",)})
    (finding,) = {*list_plan_warnings(named)} - {*list_plan_warnings(view)}
    assert (finding.code, finding.subject) == ("scram_users_unknown", "east")
    assert (finding.values["users"], finding.values["destination"]) == (
        ("app (SCRAM-SHA-256)", "bill (SCRAM-SHA-512)"),
        "west",
    )
    assert "--entity-name app " in str(finding)
    assert "SCRAM-SHA-256=" in str(finding)


@pytest.mark.parametrize("mode", RunMode)
def test_settings_that_a_promotion_cannot_set_are_named_before_it(view: MirrorSnapshot, mode: RunMode) -> None:
    """Not those of topics that are not mirrored any more, or that the mirror leaves to each cluster since."""
    refused = {"cleanup.policy": "no compaction here", "retention.ms": "unlimited here", "segment.bytes": "too small"}
    overrides = {"cleanup.policy": "compact", "retention.ms": "1000", "segment.bytes": "7", "flush.ms": "9"}
    settings = tuple(
        TopicSettings(mirror=view.mirror.name, topic=topic, overrides=overrides, refused=refused)
        for topic in (B0.topic, "left", A0.topic)
    )
    mirror = replace(view.mirror, exclude_settings=("segment.*",))
    plain = replace(view, mode=mode, mirror=mirror)
    (finding,) = {*list_plan_warnings(replace(plain, refused_settings=settings))} - {*list_plan_warnings(plain)}
    assert (finding.code, finding.subject) == ("settings_refused", "west")
    assert finding.values["settings"] == (
        f"{A0.topic}: cleanup.policy=compact",
        f"{A0.topic}: retention.ms=1000",
        f"{B0.topic}: cleanup.policy=compact",
        f"{B0.topic}: retention.ms=1000",
    )
    assert "no compaction here" in str(finding)


def test_a_clock_that_is_behind_those_of_others_is_named_where_ages_are_shown(view: MirrorSnapshot) -> None:
    assert "the clock here" not in warned(view)
    slow = replace(view, now_ms=LEASE.heartbeat_ms - 60_000)
    assert Finding("clock_behind", "m", behind_s=60.0) in list_plan_warnings(slow)
    assert "the clock here" not in warned(replace(view, now_ms=LEASE.heartbeat_ms - 900)), "what NTP leaves"
    beat = Heartbeat(mirror=view.mirror.name, driver="d", partition=0, number=1, at_ms=view.now_ms + 5_000)
    seen = replace(view, lease=None, destination=replace(DESTINATION, heartbeats=(beat,)))
    assert "at least 5 s behind" in warned(seen)


def test_who_else_may_write_the_state_topics_is_said(view: MirrorSnapshot) -> None:
    forgers = ("User:etl",)
    told = replace(view, destination=replace(DESTINATION, state_writers=forgers))
    (warning,) = set(list_plan_warnings(told)) - set(list_plan_warnings(view))
    assert (warning.code, warning.subject, warning.values["principals"]) == ("state_writers", "west", forgers)
    both = replace(told, source=replace(SOURCE, state_writers=forgers))
    assert len(set(map(str, list_plan_warnings(both))) - set(map(str, list_plan_warnings(view)))) == 2


def test_a_mirror_of_the_same_topics_to_a_third_cluster_is_named(view: MirrorSnapshot) -> None:
    north = replace(view.mirror, name=MirrorName("n"), destination=ClusterName("north"))
    (warning,) = set(list_plan_warnings(replace(view, sibling_mirrors=((north, 2),)))) - set(list_plan_warnings(view))
    assert (warning.code, warning.subject) == ("sibling_mirror_left", "n")
    assert (warning.values["topic_count"], warning.values["sibling_destination"]) == (2, "north")


@pytest.mark.parametrize("mode", [RunMode.UNPLANNED, RunMode.PLANNED])
def test_a_copy_that_is_known_to_differ_is_said_before_all_else(view: MirrorSnapshot, mode: RunMode) -> None:
    place = KnownDifference(topic="a", index=0, id="x", offset=Offset(7), kind="value", at_ms=view.now_ms - 60_000)
    known = MirrorVerification(
        mirror=view.mirror.name, topics=(), differences=(place, replace(place, topic="not-mirrored-any-more"))
    )
    unwatched = Finding("watch_need_unknown", view.mirror.name, reason="x")
    first = next(list_plan_warnings(replace(view, mode=mode, verification=known, watcher_alarms=(unwatched,))))
    assert (first.code, first.values["ends_run"]) == ("copy_differs", mode is RunMode.PLANNED)
    assert first.values["listed"] == "1 partition: a-0 from offset 7 on (value, seen 1 minute ago)"


def test_only_a_difference_that_the_proof_compares_is_said_to_end_the_run(view: MirrorSnapshot) -> None:
    failed, proved = Partition("a", 1), Partition("a", 0)
    places = [
        KnownDifference(topic=p.topic, index=p.index, id="x", offset=Offset(7), kind="value", at_ms=view.now_ms)
        for p in (proved, failed)
    ]
    known = MirrorVerification(mirror=view.mirror.name, topics=(), differences=tuple(places))
    broken = replace(view.statuses[failed], state=PartitionState.FAILED, reason="altered")
    snapshot = replace(view, mode=RunMode.PLANNED, verification=known, statuses={**view.statuses, failed: broken})
    assert (proved in build_scope(snapshot).drained, failed in build_scope(snapshot).drained) == (True, False)
    differing = [warning for warning in list_plan_warnings(snapshot) if warning.code == "copy_differs"]
    assert [(w.values["ends_run"], str(w).count("a-0"), str(w).count("a-1")) for w in differing] == [
        (True, 1, 0),
        (False, 0, 1),
    ]
    assert "end at its proof" not in str(differing[1])


def test_what_cannot_be_read_is_not_said_to_differ(view: MirrorSnapshot) -> None:
    place = KnownDifference(topic="a", index=0, id="x", offset=Offset(7), kind="unreadable on west", at_ms=view.now_ms)
    for mode, ends in ((RunMode.UNPLANNED, "applications could not read either"), (RunMode.PLANNED, "shows all")):
        known = MirrorVerification(mirror=view.mirror.name, topics=(), differences=(place,))
        first = next(map(str, list_plan_warnings(replace(view, mode=mode, verification=known))))
        assert first.startswith("CANNOT BE READ, and so not compared: 1 partition: a-0 from offset 7 on (unreadable")
        assert first.endswith(ends)
