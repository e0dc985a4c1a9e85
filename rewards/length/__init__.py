"""Length rewards: one file a rule, chosen by one word (`length=kimi`); docs/budget.md compares them."""
