"""Who asks and what they may do: identities, tokens, rate limits and the audit log."""
