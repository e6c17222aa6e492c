"""The sequencer, which gives each message its seqno, row by row or by columns."""
