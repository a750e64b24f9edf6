#!/usr/bin/env python3
"""Generates a web-log database with full-text search.

usage: make_weblog.py OUT.sqlite MB [SEED]

Writes an FTS5 table logs(ts UNINDEXED, host, source, line) until the file has MB million bytes.
Every name, page and agent below is made up. Visitors follow sessions, so address, agent, referrer
and path belong together as they do in real logs. The same size, seed and SQLite give the same rows.
OUT is replaced only when the new file is complete.
"""

import bisect
import itertools
import os
import random
import sqlite3
import sys
import time
from urllib.parse import quote_plus

BATCH_ROWS = 4000
ACTIVE_SESSIONS = 240
CLIENTS = 40_000
START_TIME = 1_735_689_600  # 2025-01-01 00:00:00 UTC

ADJECTIVES = """amber ancient autumn bitter bold brass bright broad calm cedar clear coastal cobalt copper
coral crimson crisp deep eastern fern folded forest frosted garden gentle golden granite hollow indigo ivory
kind late linen little lunar maple marine mellow misty narrow northern oak olive painted pale paper pewter
plain quiet rapid river rough round rustic sandy silent silver simple slate smoked soft stone sturdy summer
sunny tall velvet walnut warm waxed wide wild winter woven""".split()
NOUNS = """anvil apron backpack basket bench blanket board boots bottle bowl brush bucket cabinet candle
carafe chair chest clock coat cup curtain desk drawer easel fan flask fork frame glove grinder hammock
hook jacket jar journal kettle knife ladder lamp lantern loom mat mirror mug needle notebook oven pan pen
pillow pitcher plate pot press quilt rack raincoat rope rug saddle scale scarf screen shelf skillet spoon
stool stove table tent thermos towel tray trunk vase wallet whisk workbench""".split()
VERBS = "choosing cleaning repairing building restoring packing sharpening finding painting storing".split()
CATEGORIES = "kitchen garden outdoor workshop office bedroom travel lighting textiles storage sale new".split()
HOSTS = ["www.harbour-goods.example", "api.harbour-goods.example", "static.harbour-goods.example",
         "blog.harbour-goods.example"]
SEARCHERS = ["https://www.findery.example/search?q=", "https://lookup.example/?q=", "https://seekwell.example/s?query="]
REFERRERS = ["-", "-", "-", "https://news.example/item?id=", "https://social.example/p/", "https://forum.example/t/"]
PROBES = ["/admin.php", "/login.asp", "/backup.zip", "/config.yml", "/.git/HEAD", "/.env.bak", "/old/index.php",
          "/test.cgi?cmd=id", "/db/dump.sql", "/console/", "/manager/html", "/setup.php?step=1"]
PROBE_AGENTS = ["-", "curl/7.88.1", "Go-http-client/1.1", "python-requests/2.31.0", "masshunt/0.4"]
PLATFORMS = ["Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10_15_7", "X11; Linux x86_64",
             "Linux; Android 14; K", "Linux; Android 13; SM-A546B", "iPhone; CPU iPhone OS 17_5 like Mac OS X"]
BOTS = ["Mozilla/5.0 (compatible; Trawler/3.%d; +https://trawler.example/about)",
        "GatherBot/2.%d (+https://gather.example/bot.html)", "Feedleaf/1.%d (feed reader; 214 subscribers)"]
ERRORS = ["upstream timed out (110: Connection timed out) while reading response header from upstream",
          "open() failed (2: No such file or directory)", "client intended to send too large body: %d bytes",
          "connect() failed (111: Connection refused) while connecting to upstream",
          "limiting requests, excess: %d by zone \"perip\"", "SSL_do_handshake() failed: wrong version number"]
JOBS = ["mailer", "stock-sync", "checkout", "search-index", "thumbnails", "invoices"]
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


class Clock:
    """Log time; formats a second only once."""

    def __init__(self, start):
        self.now = float(start)
        self.second = None
        self.iso = self.clf = ""

    def advance(self, seconds):
        self.now += seconds
        second = int(self.now)
        if second != self.second:
            self.second = second
            t = time.gmtime(second)
            clock = "%02d:%02d:%02d" % (t.tm_hour, t.tm_min, t.tm_sec)
            self.iso = "%04d-%02d-%02dT%s" % (t.tm_year, t.tm_mon, t.tm_mday, clock)
            self.clf = "%02d/%s/%d:%s +0000" % (t.tm_mday, MONTHS[t.tm_mon - 1], t.tm_year, clock)


class Zipf:
    """Draws items so that few are common and most are rare, as in real traffic."""

    def __init__(self, rng, items, exponent):
        self.rng, self.items = rng, items
        self.cumulative = list(itertools.accumulate(1 / (i + 1) ** exponent for i in range(len(items))))

    def draw(self):
        at = bisect.bisect(self.cumulative, self.rng.random() * self.cumulative[-1])
        return self.items[min(at, len(self.items) - 1)]


class Site:
    """The made-up shop: its pages, assets, visitors, and what they do."""

    def __init__(self, rng):
        self.rng = rng
        names = ["%s-%s" % pair for pair in itertools.product(ADJECTIVES, NOUNS)]
        rng.shuffle(names)
        products = ["/shop/%s/%s-%d" % (rng.choice(CATEGORIES), n, rng.randrange(1000, 99999)) for n in names]
        posts = ["/blog/20%02d/%02d/%s-a-%s" % (rng.randrange(18, 26), rng.randrange(1, 13), rng.choice(VERBS), n)
                 for n in names[:700]]
        self.products, self.posts = Zipf(rng, products, 0.9), Zipf(rng, posts, 0.9)
        self.assets = Zipf(rng, ["/assets/%s.%08x.%s" % (rng.choice(NOUNS), rng.getrandbits(32), ext)
                                 for ext in ("js", "css", "woff2", "svg", "webp", "webp") for _ in range(30)], 0.7)
        self.clients = Zipf(rng, [self.address() for _ in range(CLIENTS)], 0.8)
        self.sizes = {}

    def address(self):
        rng = self.rng
        if rng.random() < 0.06:
            return "2001:db8:%x:%x::%x" % (rng.getrandbits(16), rng.getrandbits(12), rng.getrandbits(16))
        return "%d.%d.%d.%d" % (rng.randrange(2, 223), rng.randrange(256), rng.randrange(256), rng.randrange(1, 255))

    def agent(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.12:
            return rng.choice(BOTS) % rng.randrange(12)
        platform, major = rng.choice(PLATFORMS), rng.randrange(109, 135)
        if kind < 0.3:
            return "Mozilla/5.0 (%s; rv:%d.0) Gecko/20100101 Firefox/%d.0" % (platform, major, major)
        if kind < 0.5:
            return ("Mozilla/5.0 (%s) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.%d Safari/605.1.15"
                    % (platform, rng.randrange(7)))
        return ("Mozilla/5.0 (%s) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.%d.%d Safari/537.36"
                % (platform, major, rng.randrange(5400, 6900), rng.randrange(250)))

    def size(self, path):
        """Returns the size of a page, which stays the same except for its dynamic part."""
        size = self.sizes.get(path)
        if size is None:
            size = self.sizes[path] = int(self.rng.lognormvariate(9.2, 1.1))
            if len(self.sizes) > 50_000:
                self.sizes.clear()
        return size


class Session:
    """One visitor: yields (host, request, status, bytes, referrer) until it leaves."""

    def __init__(self, site):
        rng = site.rng
        self.site, self.client = site, site.clients.draw()
        self.probe = rng.random() < 0.05
        self.agent = rng.choice(PROBE_AGENTS) if self.probe else site.agent()
        self.left = 1 + int(rng.expovariate(1 / 14))
        self.id = "%016x" % rng.getrandbits(64)
        self.page, self.queue = self.entry(), []

    def entry(self):
        rng = self.site.rng
        if rng.random() < 0.35:
            return rng.choice(SEARCHERS) + quote_plus("%s %s" % (rng.choice(ADJECTIVES), rng.choice(NOUNS)))
        referrer = rng.choice(REFERRERS)
        return referrer if referrer == "-" else referrer + str(rng.randrange(100_000, 9_999_999))

    def step(self):
        rng, site = self.site.rng, self.site
        self.left -= 1
        if self.probe:
            return HOSTS[0], "GET " + rng.choice(PROBES), rng.choice((404, 404, 403, 301)), rng.randrange(146, 600), "-"
        if self.queue:
            path = self.queue.pop()
            return HOSTS[2], "GET " + path, 304 if rng.random() < 0.3 else 200, site.size(path), self.page
        referrer, kind = self.page, rng.random()
        method, status, host = "GET", 200, HOSTS[0]
        if kind < 0.42:
            path = site.products.draw()
        elif kind < 0.58:
            host, path = HOSTS[3], site.posts.draw()
        elif kind < 0.70:
            path = "/search?q=%s+%s&page=%d" % (rng.choice(ADJECTIVES), rng.choice(NOUNS),
                                                1 + int(rng.expovariate(1.5)))
        elif kind < 0.86:
            path, host = "/v2/items/%d?fields=price,stock&session=%s" % (rng.randrange(1000, 99999), self.id), HOSTS[1]
        elif kind < 0.93:
            path, method, host = "/v2/cart/%s/lines" % self.id, "POST", HOSTS[1]
            status = 201
        else:
            path = "/shop/%s?sort=%s&from=%d" % (rng.choice(CATEGORIES), rng.choice(("price", "name", "age")),
                                                  24 * rng.randrange(12))
        if rng.random() < 0.03:
            status = rng.choice((404, 404, 500, 502, 301, 429))
        if host != HOSTS[1]:
            self.page = "https://%s%s" % (host, path)
            self.queue = [site.assets.draw() for _ in range(rng.randrange(4))]
        return host, "%s %s" % (method, path), status, site.size(path) + rng.randrange(64), referrer


def rows(seed):
    """Yields (ts, host, source, line) without end."""
    rng = random.Random(seed)
    site, clock = Site(rng), Clock(START_TIME)
    sessions = [Session(site) for _ in range(ACTIVE_SESSIONS)]
    draw, request_id = rng.random, 0
    while True:
        clock.advance(rng.expovariate(9.0))
        at = int(draw() * ACTIVE_SESSIONS)
        session = sessions[at]
        host, request, status, size, referrer = session.step()
        kind = draw()
        if kind < 0.03:
            text = rng.choice(ERRORS)
            line = "%s [error] %d#0: *%d %s, client: %s, request: \"%s HTTP/1.1\"" % (
                clock.iso, 3100 + at % 8, request_id, text % size if "%d" in text else text, session.client, request)
            yield clock.iso, host, "error", line
        elif kind < 0.07:
            line = "level=info job=%s order=%d took_ms=%d trace=%016x msg=\"%s\"" % (
                rng.choice(JOBS), 500_000 + request_id // 40, rng.expovariate(1 / 80), rng.getrandbits(64),
                rng.choice(("done", "retry in 5 s", "queued", "skipped: unchanged", "sent")))
            yield clock.iso, host, "app", line
        else:
            line = '%s - - [%s] "%s HTTP/%s" %d %d "%s" "%s" %.3f' % (
                session.client, clock.clf, request, "1.1" if session.probe else "2.0", status,
                0 if status == 304 else size, referrer, session.agent, rng.expovariate(12))
            yield clock.iso, host, "access", line
        request_id += 1
        if session.left <= 0:
            sessions[at] = Session(site)


def generate(out, target_bytes, seed=1, progress=None):
    """Writes the database to `out`; returns its number of rows. Calls `progress(fraction)` from time to time."""
    part = out + ".part"
    for stale in (part, part + "-journal"):
        if os.path.exists(stale):
            os.remove(stale)
    db = sqlite3.connect(part, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.execute("PRAGMA cache_size=-65536")
        db.execute("CREATE VIRTUAL TABLE logs USING fts5(ts UNINDEXED, host, source, line)")
        source, count, size = rows(seed), 0, 0
        page_size = db.execute("PRAGMA page_size").fetchone()[0]
        while size < target_bytes:
            # Smaller batches near the end, so that the file does not overshoot by much.
            batch = BATCH_ROWS if target_bytes - size > 3_000_000 else BATCH_ROWS // 8
            db.execute("BEGIN")
            db.executemany("INSERT INTO logs VALUES(?,?,?,?)", itertools.islice(source, batch))
            db.execute("COMMIT")
            count += batch
            size = db.execute("PRAGMA page_count").fetchone()[0] * page_size
            if progress:
                progress(min(1.0, size / target_bytes))
        db.execute("PRAGMA journal_mode=DELETE")
        db.close()
        os.replace(part, out)
        return count
    finally:
        db.close()
        if os.path.exists(part):
            os.remove(part)


def main(argv):
    if len(argv) not in (3, 4) or argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        megabytes, seed = float(argv[2]), int(argv[3]) if len(argv) == 4 else 1
    except ValueError:
        print("make_weblog: MB and SEED must be numbers", file=sys.stderr)
        return 2
    shown, terminal, began = [-1], sys.stderr.isatty(), time.monotonic()

    def progress(fraction):
        step = int(fraction * (100 if terminal else 10))
        if step != shown[0]:
            shown[0] = step
            print(("\r" if terminal else "") + "web log: %3d%%" % (fraction * 100),
                  end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        count = generate(argv[1], megabytes * 1e6, seed, progress)
    except (sqlite3.Error, OSError) as error:
        print("\nmake_weblog: cannot write '%s': %s" % (argv[1], error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print("%s%s: %d rows, %.1f MB, seed %d, %.0f s" % ("\n" if terminal else "", argv[1], count,
          os.path.getsize(argv[1]) / 1e6, seed, time.monotonic() - began), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
