"""Numbers and tables as text."""


def human(value, field):
    if "bytes" in field:
        if value >= 1e9:
            return "%.2f GB" % (value / 1e9)
        return "%.2f MB" % (value / 1e6) if value >= 1e5 else "%.1f kB" % (value / 1e3)
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            return "%.3g %s" % (value * factor, unit) if value * factor < 1000 else "%.0f %s" % (value * factor, unit)
    return ""


def table(header, rows):
    """A markdown table that also reads well as plain text."""
    cells = [header] + [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
