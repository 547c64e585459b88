"""Numbers as people read them: counts, sizes, times."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Write how many there are of something."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def size(number: float) -> str:
    """Write a number of bytes, in the units in which limits are configured."""
    if number < 1024:
        return counted(round(number), "byte")
    unit, *larger = _UNITS
    number /= 1024
    while larger and number >= 1023.95:  # what would be written as 1,024.0
        unit, *larger = larger
        number /= 1024
    return f"{number:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Write how long something took, to about three digits."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def moment(seconds: float, span: float) -> str:
    """Write a time on an axis so long, exactly and without what is zero: ``1 h 30 min``, ``0``."""
    if not seconds:
        return "0"
    if span < 1:
        return f"{seconds * 1000:g} ms"
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{part:g} {unit}" for part, unit in parts if part)
