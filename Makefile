# Two commands are enough: `make demo` shows what Hardpack does, `make test` tests it.

.DEFAULT_GOAL := build
.PHONY: build demo test lint bench crash packages clean

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

# What is checked besides the tests: formatting, lints, documentation.
lint: packages
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# The benchmark against stock SQLite: half an hour and less on an idle machine. BENCH passes options on, as in
# BENCH='--db my.sqlite --only update_wal_normal' or, for what docs/benchmarks.md shows, BENCH='--grow-to 10G --publish docs'.
bench: build
	bench/bench.py $(BENCH)

# Many more simulated crashes than `make test` has time for.
crash: packages
	HARDPACK_CRASH_STATES=1000000 cargo test --release --locked -p hardpack-engine --test crash -- --nocapture

# The Debian packages that building, testing and the demo need.
packages:
	@scripts/packages.sh

clean:
	cargo clean
