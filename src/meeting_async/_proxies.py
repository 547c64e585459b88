"""Which proxy the environment names for a server, if any.

The standard library reads the variables (and, where there are none, the settings of macOS and
Windows). What ``NO_PROXY`` may hold is written down nowhere; here it is what curl and Go's
``httpproxy`` understand: names with all below them, addresses, networks, each with or without a
port, and ``*``.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.request


def proxy_from_environment(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy for a server; may ask the operating system, so use a thread."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or _is_excluded(host, port, proxies.get("no")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_excluded(host: str, port: int, excluded: str | None) -> bool:
    if excluded is None:  # not in the environment, but perhaps in the system's settings
        return bool(urllib.request.proxy_bypass(host))
    entries = re.split(r"[\s,]+", excluded.lower())
    return any(_matches(entry, host.lower().rstrip("."), port) for entry in entries if entry)


def _matches(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    network = _network(entry)
    if network is None and (split := re.fullmatch(r"(.+):(\d+)", entry)):
        if int(split[2]) != port:
            return False
        entry = split[1]
        network = _network(entry)
    if network is not None:
        return _is_in(network, host)
    name = entry.removeprefix("*").strip(".")
    return host == name or host.endswith(f".{name}")


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


def _is_in(network: ipaddress.IPv4Network | ipaddress.IPv6Network, host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")) in network
    except ValueError:
        return False
