"""The interface of applications: `Member` and `AsyncMember`."""
