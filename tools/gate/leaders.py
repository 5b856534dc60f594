"""The leader of each loop, read from Redis, and the time until another replica leads after a crash.

The names of the locks come from the API's list of loops; their holders come from Redis. A lock contains
`instance~token:fence`. The token is new after each start, so a restarted replica is a new holder.
"""

import threading
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Set

from .context import Context
from .model import Red
from .stacks.base import Replica

# How long a lock lasts without renewal (contract), and the limit for a take-over, counted from the kill. A lock that was
# renewed just before the kill lasts for its full time. Then another replica asks within a hundredth of that time, and
# this gate sees it with its next poll. The slack covers these delays and a busy machine.
TTL_S = 15.0
SLACK_S = 1.5
LIMIT_S = TTL_S + SLACK_S
# The shards of a loop whose replicas share its work, and what stands between the names of the loop and the shard.
SHARDS = "0123456789abcdef"
OF_SHARD = ", shard "


class Leader(NamedTuple):
    """The content of a lock's key."""

    instance: str
    token: str
    fence: int


def locks(ctx: Context) -> Dict[str, str]:
    """The key of each leader loop's lock, by loop. A loop with shards has a lock for each: here each of its shards is an
    entry of its own, such as `run reconciler, shard a`."""
    answer = ctx.stack.api("GET", "/loops", timeout=5)
    ctx.expect(answer.status == 200, f"GET /loops: {answer.status} {answer.text[:200]}")
    found = {}
    for row in answer.json["items"]:
        if "shards" in row:
            found.update({f"{row['loop']}{OF_SHARD}{shard}": row["lock"].replace("<shard>", shard) for shard in SHARDS})
        elif row.get("lock"):
            found[row["loop"]] = row["lock"]
    ctx.expect(found, "no loop has a leader's lock: nothing can be taken over")
    return found


def leader(ctx: Context, lock: str) -> Optional[Leader]:
    """The current holder of a lock."""
    value = ctx.stack.redis("GET", lock)
    if not value:
        return None
    owner, _, fence = value.rpartition(":")
    instance, _, token = owner.partition("~")
    return Leader(instance, token, int(fence))


def leaders(ctx: Context, names: Dict[str, str]) -> Dict[str, Optional[Leader]]:
    """The leader of each loop, by loop."""
    return {loop: leader(ctx, lock) for loop, lock in names.items()}


def hand_over(ctx: Context, names: Dict[str, str], away: Replica, to: str) -> None:
    """Stops a replica until another one leads all of its loops, then starts it again."""
    before = [loop for loop, held in leaders(ctx, names).items() if held and held.instance == away.name]
    if before:
        ctx.stack.stop(away)
        try:
            ctx.poll(f"{to} leads {', '.join(before)} after the stop of {away.name}", 5.0,
                     lambda: all(held and held.instance == to for loop, held in leaders(ctx, names).items() if loop in before))
        finally:
            ctx.stack.start(away)


class TakeOver(threading.Thread):
    """Watches from a crash until each of these loops has a leader with a higher fence.

    It runs in its own thread, so that the other work of the gate does not distort the times.
    """

    def __init__(self, ctx: Context, names: Mapping[str, str], before: Mapping[str, Leader]) -> None:
        super().__init__(daemon=True)
        self.took: Dict[str, float] = {}
        # How long each lock lasted after the kill, as Redis reports it.
        self.lasted: Dict[str, float] = {}
        self.fault: Optional[str] = None
        self._ctx, self._names, self._before = ctx, names, before
        self._since = time.monotonic()

    def run(self) -> None:
        while self._missing() and time.monotonic() - self._since < LIMIT_S and not self.fault:
            for loop in self._missing():
                try:
                    self._look(loop)
                except OSError:
                    pass  # The next round asks Redis again.
            time.sleep(0.1)

    def _missing(self) -> List[str]:
        return sorted(set(self._before) - set(self.took))

    def _look(self, loop: str) -> None:
        if loop not in self.lasted:
            left_ms = int(self._ctx.stack.redis("PTTL", self._names[loop]) or -2)
            self.lasted[loop] = time.monotonic() - self._since + max(left_ms, 0) / 1000
        old, new = self._before[loop], leader(self._ctx, self._names[loop])
        if not new or new.token == old.token:
            return
        if new.fence <= old.fence:
            self.fault = f"loop {loop}: the fence went from {old.fence} to {new.fence} when {new.instance} took over"
        self.took[loop] = round(time.monotonic() - self._since, 2)
        self._ctx.say(f"{loop}: {new.instance} leads {self.took[loop]:.1f} s after the crash of {old.instance}")

    def seconds(self) -> Dict[str, float]:
        """The seconds until the take-over, by loop. Red if one took longer than LIMIT_S, or if a fence decreased."""
        self.join()
        if self.fault:
            raise Red(self.fault)
        if self._missing():
            raise Red(f"no replica took over {', '.join(self._missing())} within {LIMIT_S:g} s of the crash of its leader")
        return self.took

    def after_the_lock(self) -> Dict[str, float]:
        """The seconds between the end of the dead leader's lock and the take-over, by loop."""
        return {loop: round(took - self.lasted[loop], 2) for loop, took in self.took.items()}


def doomed(held: Mapping[str, Leader], first: str) -> Set[str]:
    """The replicas whose death takes a leader from every loop, `first` among them. A loop with shards has several leaders,
    and one of them dies: the others must take over its shards."""
    by_loop: Dict[str, Set[str]] = {}
    for name, each in held.items():
        by_loop.setdefault(name.partition(OF_SHARD)[0], set()).add(each.instance)
    found = {first}
    for instances in by_loop.values():
        if not instances & found:
            found.add(max(instances))
    return found
