"""The dashboards that there are. A new one is one file here and one line in `ALL`."""

from .overview import BOARD as OVERVIEW
from .replicas import BOARD as REPLICAS
from .stores import BOARD as STORES
from .topic import BOARD as TOPIC

ALL = [OVERVIEW, TOPIC, REPLICAS, STORES]
