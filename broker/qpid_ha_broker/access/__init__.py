"""Who may do what with which node, how much each user may have, and what the audit log has of it. Pure."""
