"""The client library: `Member`, `AsyncMember` and all behind them. It never loads Spark."""
