"""Show members' figures to Prometheus, in the application's own registry: `pip install 'abcast[metrics]'`.

from abcast.prometheus import MemberCollector
from prometheus_client import REGISTRY

REGISTRY.register(MemberCollector(alice))
"""

from __future__ import annotations

from connectors.client.api.collector import MemberCollector

__all__ = ["MemberCollector"]
