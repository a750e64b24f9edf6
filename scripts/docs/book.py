#!/usr/bin/env python3
"""Checks the book that `make book` makes: every link inside it and every picture leads to something. With Debian's
`chromium` and `chromium-driver`, it opens each page as a desktop and as a phone, light and dark, too: no page may be
wider than its window, and every picture must load.

usage: scripts/docs/book.py [--pictures FOLDER] [PAGE...]
  --pictures  writes a screenshot of every page, in each size and colour
  PAGE        only pages whose names begin like this, such as "guides/"
"""

import argparse
import base64
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BOOK = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "book"
# Width and height in CSS pixels, and whether it is a phone.
WINDOWS = {"desktop": (1280, 900, False), "phone": (390, 844, True)}
COLOURS = ["light", "dark"]
# Returns by how much the page is wider than its window, what is widest, and which pictures are missing. A table or code
# that scrolls by itself is not too wide.
LOOK = """
const scrolls = one => one.tagName != "MAIN"
    && (["auto", "scroll", "hidden"].includes(getComputedStyle(one).overflowX) || scrolls(one.parentElement));
let widest = "", right = window.innerWidth + 1;
for (const one of document.querySelectorAll("main *")) {
    const edge = one.getBoundingClientRect().right;
    if (edge > right && !scrolls(one.parentElement))
        [widest, right] = [one.tagName + ": " + one.textContent.trim().slice(0, 60), edge];
}
const missing = [...document.images].filter(one => one.complete && !one.naturalWidth).map(one => one.src);
return {over: widest && Math.round(right - window.innerWidth), widest, missing};
"""


class Page(html.parser.HTMLParser):
    """The links of a page, and the anchors that others may link to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def check_links(pages):
    """Yields a line for every link that leads to nothing."""
    read = {path: Page(path) for path in pages}
    for path, page in read.items():
        for link in page.links:
            if re.match(r"[a-z][a-z0-9+.-]*:|//", link):
                continue
            name, _, anchor = urllib.parse.unquote(link).partition("#")
            name = name.partition("?")[0]
            target = (path.parent / name).resolve() if name else path
            where = path.relative_to(BOOK)
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                yield f"{where}: '{link}' leads to nothing"
            elif anchor and target in read and anchor not in read[target].anchors:
                yield f"{where}: '{link}' names nothing on that page"


class Browser:
    """Chromium without a window, driven by the WebDriver protocol."""

    def __init__(self):
        # A proxy of the environment is not for this machine.
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            if port := re.search(r"on port ([1-9]\d*)", line):
                break
        else:
            raise OSError("chromedriver does not start")
        self.url = f"http://127.0.0.1:{port.group(1)}/session"
        options = {"args": ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--allow-file-access-from-files"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self.url += "/" + self.call("", wanted)["sessionId"]

    def call(self, path, body, method="POST"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with self.opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def tell(self, command, **parameters):
        """Sends a command of Chromium's own protocol."""
        return self.call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self):
        try:
            self.call("", None, "DELETE")
        finally:
            self.driver.terminate()
            self.driver.wait()


def check_looks(pages, pictures):
    """Yields a line for every page that does not fit its window, or lacks a picture."""
    browser = Browser()
    try:
        for window, (width, height, phone) in WINDOWS.items():
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
            browser.tell("Emulation.setDeviceMetricsOverride", **metrics)
            for colour in COLOURS:
                scheme = {"name": "prefers-color-scheme", "value": colour}
                browser.tell("Emulation.setEmulatedMedia", features=[scheme])
                for path in pages:
                    name = path.relative_to(BOOK)
                    browser.call("/url", {"url": path.as_uri()})
                    found = browser.call("/execute/sync", {"script": LOOK, "args": []})
                    if found["over"]:
                        yield f"{name}, {window}, {colour}: {found['over']} pixels too wide ({found['widest']})"
                    for missing in found["missing"]:
                        yield f"{name}, {window}, {colour}: the picture {missing} is missing"
                    if pictures:
                        file = pictures / f"{str(name.with_suffix('')).replace('/', '-')}-{window}-{colour}.png"
                        file.write_bytes(base64.b64decode(browser.call("/screenshot", None, "GET")))
    finally:
        browser.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("page", nargs="*")
    options = parser.parse_args()
    pages = sorted(path for path in BOOK.rglob("*.html") if path.name not in ("print.html", "404.html", "toc.html"))
    if not pages:
        sys.exit(f"there is no book in {BOOK}: run 'make book'")
    problems = list(check_links(pages))
    shown = [path for path in pages if str(path.relative_to(BOOK)).startswith(tuple(options.page) or "")]
    if shutil.which("chromedriver"):
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
        problems += check_looks(shown, options.pictures)
        looked = "opened in Chromium"
    else:
        looked = "NOT OPENED: there is no chromedriver (chromium, chromium-driver)"
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(pages)} pages of the book, {looked}; {len(problems) or 'no'} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
