"""What proves a copy and a run: receipts, reports, signed bundles, and Great Expectations.

*Receipts* say what each task copied; *certificates* are receipts that still cover the
destination's logs, and prove them without the source. *Evidence* says what a run did and saw.

Invariants:

- **Files are written whole or not at all** (`file_store.Folder`).
- **A head in the state topic is written before its receipt file** (`receipt_index`). So a file without a head is not
  ours and is never believed, an altered one is found by its SHA-256, and one that was announced and never stored is no
  loss.
- **The newest piece counts** where receipts overlap, after a recopy or after the source lost records (`certificates`).
- **A bundle shows every change** (`signed_bundle`). Each line holds the hash of the line before, every file has a line,
  and the signed head holds the last hash. A verifier derives the verdict from the entries again.
- **Unknown is never a pass.** A suite's preconditions fail where a value is null, and the verdict becomes INDETERMINATE
  (`expectation_suites`, `expectations`).
- **Pages show no record contents**, load nothing from elsewhere, and escape names that others chose. Folders that may
  hold contents are private to this user, and copies of bundles leave them out.

Start with `receipt_index.check_receipts` and `certificates.compute_coverage`, then `signed_bundle.write_bundle` and
`signed_bundle.verify_bundle`.
"""
