"""Free ports of this host. They are free when asked for; a busy machine may still take one later."""

import random
import socket
from pathlib import Path
from typing import List

LOWEST = 20_000


def free_ports(count: int) -> List[int]:
    """So many different ports, below the range that outgoing connections take theirs from."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if end < LOWEST + 1000:
        end = 65_000
    found: List[int] = []
    for port in random.SystemRandom().sample(range(LOWEST, end), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"found only {len(found)} free ports of {count}")
