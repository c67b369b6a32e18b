"""Moving over from MirrorMaker 2: its configuration, and where readers of its copies begin.

- `java_properties`: Java's properties files, with line numbers.
- `mm2_config`: what mm2.properties says: clusters, flows, names of topics.
- `conversion`: mirrorbook.yaml and commands that follow from it, and a finding for what has no counterpart.
- `mm2_records`: records of MirrorMaker's offset-syncs and checkpoints topics.
- `start_offsets`: where a reader of `east.orders` begins in `orders`, by the records of both. Pure.
- `reader_survey`: reads them from the clusters.

A place is proved by content, never believed: MirrorMaker's own records only say where the comparison begins. Each
record of the new copy that a reader is to skip equals one that it has already read in the old copy. Nothing here
writes to a cluster, and no secret of the file is kept but as a reference.
"""
