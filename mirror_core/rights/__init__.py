"""Rules about ACLs: what Mirrorbook needs, grants, withdraws and denies. Pure functions on `model.acl`.

Invariants
----------
- Denials win over grants, so applications are stopped by adding denials; their grants stay untouched
  and hold again when the denials are lifted.
- Denials name one principal each, except for a fence: a denial for everybody would stop the mirror, too.
- Only ACLs of the ledger are changed or removed. The state topic may be written by others, so an entry
  that Mirrorbook can never have made is reported and not acted on.
- No right is withdrawn because of something unknown.

Start with `acl_rules`, then `ledger_rules`.
"""
