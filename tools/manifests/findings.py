"""What a check found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One fault: which check found it, in which object, and what is wrong."""

    check: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} [{self.check}]"
