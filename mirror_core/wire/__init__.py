"""Bytes to protocol messages and record batches and back. No sockets."""
