"""The pages about mirrors and runs, read only, whoever serves them: Airflow, or `mirrorbook page`.

- `poller` looks at the clusters in background threads, and only while somebody asks; `snapshots` are what it has seen.
- `cards`, `runs`, `overview` and `mirror_page` choose what is shown of these. Each figure has an age: one that is too
  old is unknown, and unknown is a value, never zero.
- `plots` draws the past, from Prometheus where there is one; `reports` finds evidence, and serves nothing else.
- `routes` answers an address. Who looks is a `Viewer`: what they may see, and which buttons they get, is the server's
  to say. No answer changes anything, and none waits for a cluster.

Begin with `routes.Pages`.
"""
