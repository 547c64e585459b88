"""Which proxy the environment names for a server, if any.

The standard library reads the variables (and, where there are none, the settings of macOS and
Windows); it knows no networks in ``NO_PROXY``, which are common for servers inside a company.
"""

from __future__ import annotations

import ipaddress
import urllib.request


def proxy_from_environment(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy for a server; may ask the operating system, so use a thread."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(f"{host}:{port}"):
        return None
    if _is_in_network(host, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in_network(host: str, excluded: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    networks = (_network(entry.strip()) for entry in excluded.split(","))
    return any(network is not None and address in network for network in networks)


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None  # a name, which the standard library has looked at
