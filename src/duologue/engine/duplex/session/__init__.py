"""The shell around one session's state machine: mailbox, tasks, timer, delivery."""
