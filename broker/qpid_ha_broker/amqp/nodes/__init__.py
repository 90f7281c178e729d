"""What links are attached to: hosted sets, termini, subscriptions, `$management`; and who may."""
