"""The sequencer: gives each message its seqno, row by row or by columns."""
