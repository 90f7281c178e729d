"""One archive with what somebody needs who is to help, and with no secret: `qpid-ha support-bundle`."""
