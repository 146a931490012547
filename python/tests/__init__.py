import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores Ctrl-C, and so would its tests
