"""A run whose fence somebody has lifted: it promotes nothing, or, where it has begun to, is fenced again first."""

from __future__ import annotations

from dataclasses import replace

from mirror_core.decide.reckoning import of_applications
from mirror_core.decide.scope import Scope
from mirror_core.decide.standing import slipped_in, when
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors.old_source import keep_out, still
from mirror_core.model.errors import LostOwnership, MirrorError, Refused
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Offset, Partition
from mirror_core.model.offsets import Offsets
from mirror_core.model.run import Evidence
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.unfencing import FILE, LiftFile, lifted_ms
from mirror_core.sync.fence import denials_of, undenied
from mirror_core.sync.identity import check_source


def refuse_if_lifted(acts: Acts) -> None:
    """Also where the source does not answer now, and could not show that its denials are gone."""
    lifted = lifted_ms(acts.services, acts.journal.run_id)
    if lifted is not None:
        raise Refused(
            f"run {acts.journal.run_id}: promotion",
            [
                f"its fence on {acts.link.source.name} was lifted by its file at {when(lifted)}, so applications may "
                "have written there since: abort this run, and plan again"
            ],
        )


def fenced_again(acts: Acts, scope: Scope) -> Evidence:
    """From the promotion on there is no abort: deny again what is not denied any more, if the source answers.

    What it took meanwhile only the source has. That is remembered with its fence, as of one that fell silent.
    """
    try:
        with ClusterClient(acts.link.source, timeout_s=LIMITS.lost_source_s) as source:
            check_source(acts.link, source)
            if not undenied(source, denials_of(scope.names)):
                return {}
            lift = LiftFile(acts, needed=False)
            keep_out(acts.link, acts.writer, source, scope.names, before=lift)
            ends = still(source, scope.drained)
    except LostOwnership:
        raise
    except MirrorError as error:  # a source that has died since it was fenced holds nobody up
        return {"fence": f"not looked at again: {error}"}
    debt = acts.writer.state.debts[acts.link.mirror.name]
    acts.writer.put(replace(debt, ends=Offsets.of({**debt.ends.by_partition(), **ends})))
    written = [f"{p} [{start}, {end})" for p, (start, end) in slipped(acts).items()]
    return {"fence": "was gone, raised again", "written_meanwhile": some(written) or "none", FILE: lift.words}


def slipped(acts: Acts) -> dict[Partition, tuple[Offset, Offset]]:
    """What applications have written on the source while its fence was lifted."""
    debt, statuses = acts.writer.state.debts.get(acts.link.mirror.name), acts.statuses()
    theirs = of_applications(statuses)
    found = slipped_in(debt, statuses) if debt is not None else {}
    return {p: span for p, span in found.items() if p in theirs}
