"""Letters: unicast between members, go-back-N per sender."""
