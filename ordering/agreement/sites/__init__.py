"""The parts of a site in the agreement of a group (`ordering.agreement.site`)."""
