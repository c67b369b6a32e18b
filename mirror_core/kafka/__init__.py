"""Kafka's protocol: connections, admin requests, fetch, produce, transactions. Decides nothing itself.

Order, bottom up:

- `config`, `tls`, `sockets`, `codec` -> `connection`: one blocking connection with a timeout on every wait.
- `connection_pool`, `broker_health` -> `client.ClusterClient`: metadata and control requests to any broker.
- `error_mapping`: error codes to exceptions, retries. `fan_out`: one request to every broker.
- Data: `fetch_link`, `produce_link`, `marker_link` (one broker each), `log_reader` (blocking).

Invariants:

- *Unknown is a value.* A silent broker, an offline partition or a missing right yields an entry in `unknown`, never an
  empty result. A second broker confirms absence, since the first may be cut off from the controllers.
- *A dead broker costs one time limit, once*: `fan_out`, `broker_health`.
- *A connection with an unread response is closed*: the rest would answer the next request.
- *Control requests are idempotent*, because a broken connection repeats them. Records and markers are not sent again
  here: `produce_link` and `marker_link` leave that to the log end, `transactional_producer` to sequence and epoch.
- *A change holds when every broker shows it.* The controller answers first; `fan_out.wait_for_propagation` waits.
- Offsets are next offsets (to be read or written) unless named otherwise. Times ending in `_s` are monotonic.

Only this room imports kio. Start with `connection`,
`client`, `error_mapping`.
"""
