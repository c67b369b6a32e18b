from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from mirror_core.decide.guard import Guarded, Remembered, guard
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import MirrorName
from mirror_core.state.topic import read_state


def guarded(config: Config, name: str, cluster: str) -> Guarded:
    """Asks all other clusters: this one's brokers are down. BadRequest when there is none."""
    asked = config.cluster(cluster)
    others = {other: one for other, one in config.clusters.items() if other != asked.name}
    if not others:
        raise BadRequest(f"{config.path} names no cluster but {cluster}: nobody could remember a failover away from it")
    with ThreadPoolExecutor(len(others)) as pool:
        answers = dict(zip(others, pool.map(_remembered, others.values()), strict=True))
    return guard(asked.name, MirrorName(name), answers)


def _remembered(cluster: ClusterConfig) -> Remembered | str:
    try:
        state = read_state(cluster, timeout_s=LIMITS.state_owner_s, whole=True)
    except MirrorError as error:
        return f"not known: {error}"
    return Remembered(tuple(state.mirrors.values()), state.debts)
