from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from mirror_core.decide.guard import BrokerStartDecision, RecordedMirrors, decide_broker_start
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.limits import TIMEOUTS
from mirror_core.model.names import MirrorName
from mirror_core.state.topic import read_state


def check_start(config: Config, name: str, cluster: str) -> BrokerStartDecision:
    """Asks all other clusters: this one's brokers are down. BadRequest when there is none."""
    starting = config.cluster(cluster)
    others = {other: other_config for other, other_config in config.clusters.items() if other != starting.name}
    if not others:
        raise BadRequest(f"{config.path} names no cluster but {cluster}: nobody could remember a failover away from it")
    with ThreadPoolExecutor(len(others)) as pool:
        answers = dict(zip(others, pool.map(_read_memory, others.values()), strict=True))
    return decide_broker_start(starting.name, MirrorName(name), answers)


def _read_memory(cluster: ClusterConfig) -> RecordedMirrors | str:
    try:
        state = read_state(cluster, timeout_s=TIMEOUTS.mirror_lookup_s, wait_for_open=True)
    except MirrorError as error:
        return f"not known: {error}"
    return RecordedMirrors(tuple(state.mirrors.values()), state.pending_fences)
