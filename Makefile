# Two commands are enough: `make demo` shows what Hardpack does, `make test` tests it.

.DEFAULT_GOAL := build
.PHONY: build demo test lint bench crash schedules torture sqlite-suite fuzz packages clean

# Builds the command line (target/release/hardpack) and the SQLite extension (…/libhardpack.so).
build: packages
	cargo build --release --locked

# Packs a real database, queries and updates it through the stock sqlite3 shell, and compares.
# `make demo DB=path` takes a database of your own; it is only read.
demo: build
	scripts/demo.sh $(DB)

# Every test. The release build is there for those that drive the stock shell and the benchmark.
test: build
	cargo test --workspace --locked
	bench/test_charts.py
	bench/bench.py --quick --out target/bench-smoke
	scripts/torture/run.py --quick

# What is checked besides the tests: formatting, lints, documentation.
lint: packages
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# The benchmark against stock SQLite: half an hour and less on an idle machine. BENCH passes options on, as in
# BENCH='--db my.sqlite --only update_wal_normal' or, for what docs/benchmarks.md shows, BENCH='--grow-to 10G --publish docs'.
bench: build
	bench/bench.py $(BENCH)

# Many more simulated losses of power than `make test` has time for: of the engine alone, a quarter of an hour, and of
# SQLite, the VFS and the engine together, as long again. Both print a table.
crash: packages
	HARDPACK_CRASH_STATES=1000000 cargo test --release --locked -p hardpack-engine --test crash -- --nocapture
	HARDPACK_VFS_CRASH_STATES=200000 cargo test --release --locked -p hardpack-sqlite --test power_loss -- --nocapture

# Threads, processes and commands that use one pool, in many more orders than `make test` has time for: some minutes. It
# prints the seeds of those that went wrong.
schedules: packages
	HARDPACK_SCHEDULES=20000 cargo test --release --locked -p hardpack-engine --test schedules -- --nocapture
	HARDPACK_SCHEDULES=20000 cargo test --locked -p hardpack-cli --test schedules

# Real processes killed, full disks, power cuts: half an hour, all of it as root. TORTURE passes options on.
torture: build
	scripts/torture/run.py $(TORTURE)

# SQLite's own test suites with Hardpack as the default VFS, hours of them. SUITE passes options on, as in SUITE=--quick.
sqlite-suite: build
	scripts/sqlite-suite/run.sh $(SUITE)

# Fuzz targets under AddressSanitizer, a minute each; needs nightly Rust.
fuzz:
	scripts/fuzz.sh

# The Debian packages that building, testing and the demo need.
packages:
	@scripts/packages.sh

clean:
	cargo clean
