#!/usr/bin/env python3
"""Puts a result into the documentation: raw data, charts, and the tables between two marks in benchmarks.md.

usage: publish.py RESULT.json DOCS

The text above the first mark is left as it is.
"""

import json
import os
import sys

import figures
import report

BEGIN, END = "<!-- results: made by bench/publish.py -->", "<!-- end of results -->"


def as_json(result):
    """Formats one line for each sample, so that the file stays short and differences are readable."""
    parts = []
    for key, value in result.items():
        if isinstance(value, list) and value:
            lines = ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in value)
            parts.append("%s: [\n%s\n ]" % (json.dumps(key), lines))
        else:
            parts.append("%s: %s" % (json.dumps(key), json.dumps(value, ensure_ascii=False)))
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def between_marks(page, text, begin=BEGIN, end=END):
    """Returns `page` with everything between the marks replaced; missing marks are appended."""
    before, mark, rest = page.partition(begin)
    if not mark:
        return page.rstrip("\n") + "\n\n%s\n%s\n%s\n" % (begin, text.rstrip("\n"), end)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError("'%s' is missing" % end)
    return before + begin + "\n" + text.rstrip("\n") + "\n" + end + after


def check(result):
    """Checks that a result is one whole run, which is all that the page may show."""
    options = result["options"]
    for unfit, reason in ((result["interrupted"], "it was interrupted"), (options["quick"], "it was a quick run"),
                          (options["self_test"], "it was a self-test"), (options["only"], "it measured only a part")):
        if unfit:
            raise ValueError(reason)


def publish(result, docs):
    check(result)
    drawings = figures.draw(result)
    for directory in ("charts", "bench-data"):
        os.makedirs(os.path.join(docs, directory), exist_ok=True)
    for name, drawing in drawings.items():
        write(os.path.join(docs, "charts", name + ".svg"), drawing)
    raw = "bench-data/%s.json" % result["machine"]["date"][:10]
    write(os.path.join(docs, raw), as_json(result))
    page = os.path.join(docs, "benchmarks.md")
    text = report.markdown(result, {name: "charts/%s.svg" % name for name in drawings}, raw)
    lines = text.splitlines()[1:]  # the page has a title of its own
    with open(page, encoding="utf-8") as file:
        written = between_marks(file.read(), "\n".join(["## The run"] + [lower(line) for line in lines]))
    write(page, written)


def lower(line):
    """Moves headings of the report one level down for the page."""
    return "#" + line if line.startswith("## ") else line


def write(path, content):
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)


def main(argv):
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(argv[0], encoding="utf-8") as file:
            result = json.load(file)
        publish(result, argv[1])
    except (OSError, ValueError) as error:
        print("publish: cannot publish '%s': %s" % (argv[0], error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
