"""Bytes to record batches and protocol messages, and back. No sockets, no clock.

Kafka stores and sends records in batches, and a batch's bytes can be copied as they are: only the
header says which producer and offset they have. Most batches are therefore never decompressed.

A batch on its way
------------------
1. `fetch.decode_response` gives views into the response; `batch.split_batches` finds the batches.
2. `read_committed.filter_committed` verifies CRCs and drops what no consumer sees.
3. `reencode.can_copy_whole` decides: the bytes cross as they are, or `reencode.split_into_runs`
   (`message_v0_v1` for old formats) makes dense batches of them. `reencode.merge_batches` joins tiny ones.
4. `batch.readdress` sets producer, sequence and CRC; `produce.encode_request` sends it.
   Gaps are filled by `txn_markers` or `hidden_records`.

Invariants
----------
- A CRC is checked before any byte changes. Recomputing it alone would turn corruption into valid data.
- Consumers see equal offsets, timestamps, keys, values and headers. Names of headers stay bytes.
- Every length is checked before use; damaged input raises `batch.MalformedBatch` or
  `fields.MalformedResponse`, nothing else, and memory for decompression is bounded
  (`records.DecompressionBudget`).

Start with `batch`, then `read_committed` and `reencode`.
"""
