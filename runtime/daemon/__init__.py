"""The shells around `supervision`: processes, sockets and files of a daemon. They perform, and decide nothing."""
