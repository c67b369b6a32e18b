"""Pure decisions: a view in, a plan or a refusal out. No client, no clock."""
