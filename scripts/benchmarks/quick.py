"""What `scripts/bench all --quick` asks of each part: that it runs, in seconds."""

WORDS = {
    "read": ["--megabytes", "2", "--count", "50"],
    "peers": ["--megabytes", "2", "--no-install"],
    "scale": ["--tensors", "160", "2000", "--checkpoints", "5"],
    "load_file": ["--layers", "1", "--width", "32", "--calls", "2"],
    "attach": ["--tensors", "160", "--megabytes", "2"],
    "control": ["--writers", "50"],
    "device_load": ["--megabytes", "40", "--tensors", "500"],
}
