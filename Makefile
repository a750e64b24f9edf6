# Two commands are enough to begin: `make demo` shows what Hardpack does, `make test` tests it.

.DEFAULT_GOAL := build
.PHONY: build demo test test-python test-reader lint bench crash schedules torture sqlite-suite examples fuzz dist book packages clean

# Builds the command (target/release/hardpack) and the SQLite extension (target/release/libhardpack.so).
build: packages
	cargo build --release --locked

# Packs a real database, queries and updates it through the stock sqlite3 shell, and compares.
# `make demo DB=path` takes a database of your own; it is only read.
demo: build
	scripts/demo.sh $(DB)

# Runs every test. Those that drive the stock shell, and the short benchmark, need the release build. Those of `import`
# make archives with their own tools.
test: build
	scripts/packages.sh acl fuse3 zip 7zip libarchive-tools squashfs-tools squashfs-tools-ng xz-utils bzip2 zstd python3-venv
	cargo test --workspace --locked
	scripts/package.sh
	$(MAKE) --jobs=2 --output-sync=target --no-print-directory test-python test-reader
	scripts/mount.sh --quick
	bench/test_charts.py
	bench/bench.py --quick --out target/bench-smoke
	scripts/torture/run.py --quick
	scripts/examples.sh --quick
	scripts/dist/test.sh --quick
	scripts/docs/guides.py

# These two use one processor each.
test-python:
	scripts/python.sh
test-reader:
	scripts/reader/test.sh

# Checks formatting, lints, documentation, spelling, and licences of dependencies. Warnings are errors.
lint: packages
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	scripts/lint.sh

# Benchmarks Hardpack against stock SQLite: half an hour or less on an idle machine. BENCH passes options on, as in
# `make bench BENCH='--db my.sqlite --only update_wal_normal'`. docs/benchmarks.md is made with BENCH='--publish docs'.
# The first reads of fresh processes come last, with a chart of them.
bench: build
	bench/bench.py $(BENCH)
	bench/first_rows.py --chart bench-results/first-rows.svg

# Simulates many more losses of power than `make test` has time for: a quarter of an hour on the engine alone, then as
# long again on SQLite, the VFS and the engine together, and some minutes on a mounted directory. All print what they tried.
crash: packages
	HARDPACK_CRASH_STATES=1000000 cargo test --release --locked -p hardpack-engine --test crash -- --nocapture
	HARDPACK_VFS_CRASH_STATES=200000 cargo test --release --locked -p hardpack-sqlite --test power_loss -- --nocapture
	HARDPACK_MOUNT_CRASH_STATES=400000 cargo test --release --locked -p hardpack-mount power_loss -- --nocapture

# Lets threads, processes and commands use one pool, in many more orders than `make test` has time for: some minutes.
# Prints the seeds of the orders that failed.
schedules: packages
	HARDPACK_SCHEDULES=20000 cargo test --release --locked -p hardpack-engine --test schedules -- --nocapture
	HARDPACK_SCHEDULES=20000 HARDPACK_POWER_SCHEDULES=2000 cargo test --locked -p hardpack-cli --test schedules

# Kills real processes, fills disks and cuts the power: half an hour; needs root for all of it. TORTURE passes options on.
torture: build
	scripts/torture/run.py $(TORTURE)

# Runs SQLite's own test suites with Hardpack as the default VFS: hours. SUITE passes options on, as in SUITE=--quick.
sqlite-suite: build
	scripts/sqlite-suite/run.sh $(SUITE)

# Runs the examples for all languages that are on this machine; downloads their drivers.
examples: build
	scripts/examples.sh

# Runs every fuzz target under AddressSanitizer for a minute. Needs nightly Rust.
fuzz:
	scripts/fuzz.sh

# Makes the packages of a release, for x86-64 and ARM, in target/packages: some minutes. DIST passes options on, as in
# DIST=x86_64. docs/install.md says what they are.
dist: packages
	scripts/dist/build.sh $(DIST)

# Makes a book of the documentation, target/book/index.html, and checks it. Builds mdBook the first time.
book:
	scripts/book.sh

# Installs the Debian packages that building, testing and the demo need.
packages:
	@scripts/packages.sh

clean:
	cargo clean
