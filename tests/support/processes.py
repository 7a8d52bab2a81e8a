"""What the kernel says of processes."""

import os
from pathlib import Path


def memory(process):
    """Bytes of a process, by the names that the kernel has for them."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {
        words[0].rstrip(":"): int(words[1]) << 10
        for words in lines
        if len(words) == 3 and words[2] == "kB"
    }


def open_files(process, folder):
    """Files of a folder that a process has open, also those that have no name any more."""
    links = [link for link in Path(f"/proc/{process}/fd").glob("*") if link.is_symlink()]
    return [target for target in map(os.readlink, links) if target.startswith(str(folder))]
