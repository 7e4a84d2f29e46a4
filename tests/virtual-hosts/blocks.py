"""KV blocks of the hosts."""

from host import VirtualHost
from rack import DEVICE, figures


def run(host: VirtualHost, node: int, action: str) -> dict[str, str]:
    """Does something with blocks as a process of `node`, and returns the figures."""
    return figures(host.run(f"dax-suite blocks --region {DEVICE} --node {node} {action}").expect())
