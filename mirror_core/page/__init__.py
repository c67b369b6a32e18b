"""The pages about mirrors and runs, read only, served by Airflow or `mirrorbook page`.

- `poller` polls the clusters in background threads, and only while requests come; `snapshots` are its results.
- `cards`, `runs`, `overview` and `mirror_page` choose what is shown of these. Each figure has an age: one that is too
  old is unknown.
- `routes` answers an address. The server decides what a `Viewer` may see, and which buttons it gets. No response
  changes anything, and none waits for a cluster.

Begin with `routes.Pages`.
"""
