"""Values that an application passes and gets: messages, deliveries, letters, receipts."""
