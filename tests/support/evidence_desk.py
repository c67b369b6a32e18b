"""Evidence desk, shared by tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from mirror_core.decide.steps import list_step_names, plan_steps
from mirror_core.evidence.signed_bundle import (
    BundleHead,
    BundleVerification,
    PublicKey,
    Signer,
    write_bundle,
)
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Plan, Run, RunKind, RunMode, RunState, StepEvidence
from mirror_core.state.journal import Journal, make_begin_entry
from tests.support.memory_state import MemoryLog

NAME = MirrorName("orders")

SEEN: Mapping[str, StepEvidence] = {
    "prove": {"parity_verdict": "passed", "records": 100, "records_proved_before": 0},
    "parity": {"parity_verdict": "passed", "records_in_all": 120, "records_since_proof": 20, "partitions": 2},
}


def plan(kind: RunKind = RunKind.FAILOVER, mode: RunMode = RunMode.PLANNED) -> Plan:
    mirror = Mirror(
        name=NAME,
        source=ClusterName("east"),
        destination=ClusterName("west"),
        source_id="e",
        destination_id="w",
        topics=("t",),
        producer_id=2**62,
        desired=DesiredState.STARTED,
        created_ms=1,
    )
    return Plan(kind=kind, mirror=NAME, mode=mode, steps=plan_steps(kind, mirror, mode), bound_facts=())


class Desk:
    """A run that was driven, and its bundle."""

    def __init__(self, folder: Path, run: str, of: Plan, signer: Signer | None) -> None:
        self.folder = folder / run
        self.folder.mkdir()
        self.signer = signer
        self.log = MemoryLog()
        self.run = Run(
            id=run, number=1, plan=of, plan_hash=of.hash, state=RunState.RUNNING, started_by="ann", started_ms=1,
            desired=DesiredState.STARTED, conducted_by="ann", approved_by="ann@host",
        )  # fmt: skip
        self.log.put(self.run, make_begin_entry(self.log, self.run))
        self.journal = Journal(self.log, run, list_step_names(of.kind, of.mode))

    def take(self, until: str | None = None, seen: Mapping[str, StepEvidence] = SEEN) -> Desk:
        while (name := self.journal.next_step()) is not None and name != until:
            self.journal.perform(name, lambda name=name: seen.get(name, {"n": 1}))  # type: ignore[misc]
        return self

    def end(self, state: RunState = RunState.DONE) -> Desk:
        self.journal.end(state)
        return self

    def write(self) -> BundleHead:
        (self.folder / "report.html").write_text("<p>done</p>")
        return write_bundle(self.folder, self.journal.run, self.log.state.audit_lines(self.run.id), self.signer)


@dataclass(frozen=True)
class Keys:
    signer: Signer
    public: PublicKey


def keys(folder: Path, name: str) -> Keys:
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    pem = serialization.Encoding.PEM
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    private.chmod(0o600)
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return Keys(Signer(private), PublicKey(public))


def where(found: BundleVerification) -> list[str]:
    return [flaw.where for flaw in found.flaws]
