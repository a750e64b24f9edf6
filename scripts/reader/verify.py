"""The checks of `read_pool.py verify`: checksums of everything that the pool and its snapshots reach, the zeros after
it, the accounting of sectors, references, the superblock's statistics, the dedup index, and names both ways."""

import struct
from collections import Counter

from read_pool import (
    DEAD, DELTA, DICTIONARIES, EXTENT, EXTENTS, FREED, HASHES, INDEX, KINDS, MAP, NAMES, OF_SNAPSHOTS,
    PAGE_FILTER, PAGES_APART, PATCHES, REFS, RESERVED, RESERVED_LEN, ROOTS, SPACE, Pointer, Pool, apply_delta,
    is_zero, need, u64be,
)  # fmt: skip

# The groups of the statistics, by number.
IN_POINTERS, OF_PATCHES, OF_NODES, FIRST_CODEC, FILTERED, COUNTED, SHARED = 0, 1, 2, 3, 16, 17, 18


class Verifier:
    def __init__(self, pool):
        self.pool, self.live, self.superblock = pool, pool.live, pool.superblock
        self.stats = [[0] * 4 for _ in range(19)]
        # The number of references to the extent that begins at a sector, and its length.
        self.pointers, self.lengths = Counter(), {}
        self.seen = set()
        durable = self.superblock.txg if self.superblock.flags & 1 else self.superblock.durable
        self.durable = durable

    def count(self, group, *values):
        self.stats[group] = [sum(pair) for pair in zip(self.stats[group], values)]

    def use(self, pointer, references=1):
        """Counts a reference."""
        run = pointer.run(self.pool)
        if run is None:
            return
        self.add_run(*run, references)
        self.fill(pointer)

    def fill(self, pointer):
        """Checks that only zeros fill the last sector of an extent."""
        sector = self.pool.sector if pointer.birth <= self.durable else 512
        end, fill = pointer.sector * self.pool.sector + pointer.stored_len, -pointer.stored_len % sector
        data = self.pool.bytes(end, fill)
        need(len(data) == fill and is_zero(data), f"the bytes that fill the sector after byte {end} are not zero")

    def add_run(self, sector, sectors, references):
        self.pointers[sector] += references
        need(self.lengths.setdefault(sector, sectors) == sectors, f"extents at sector {sector} differ in length")

    def content(self, state, pointer):
        """Reads an extent once, as a whole."""
        key = (pointer.kind, pointer.sector, pointer.behind)
        if pointer.kind != EXTENT or key not in self.seen:
            self.seen.add(key)
            data = state.extent(pointer)
            if pointer.filter == DELTA:
                apply_delta(data, bytes(pointer.len))

    def allocated(self, pointer):
        run = pointer.run(self.pool)
        return run[1] * self.pool.sector if run else 0

    def live_trees(self):
        """Checks everything that the pool itself reaches, and counts it for the statistics."""
        for tree in self.live.roots:
            for key, value in self.live.entries(tree, self.node):
                if tree in (MAP, PATCHES, DICTIONARIES, INDEX):
                    pointer = Pointer(value)
                    self.use(pointer)
                    self.content(self.live, pointer)
                    self.count_pointer(tree, pointer)
                elif tree == DEAD:
                    self.dead(key, value)

    def node(self, pointer):
        self.use(pointer)
        self.count(OF_NODES, 1, pointer.len, pointer.stored_len, self.allocated(pointer))

    def count_pointer(self, tree, pointer):
        values = 1, pointer.len, *(self.share(pointer, n) for n in (pointer.stored_len, self.allocated(pointer)))
        if tree in (DICTIONARIES, INDEX):
            return self.count(OF_NODES, *values)
        self.count(FIRST_CODEC + pointer.codec if pointer.kind == EXTENT else IN_POINTERS, *values)
        if tree == PATCHES:
            self.count(OF_PATCHES, *values)
        if pointer.filter in (PAGE_FILTER, PAGES_APART):
            before = pointer.stored_len * 256 // (256 - pointer.gain)
            self.count(FILTERED, 1, pointer.len, before, pointer.stored_len)

    def share(self, pointer, count):
        """Returns how many of the stored bytes of its extent a pointer accounts for."""
        is_part = (pointer.part_offset, pointer.len) != (0, pointer.extent_len)
        if pointer.kind != EXTENT or pointer.filter == DELTA or not is_part:
            return count
        return -(-count * pointer.len // pointer.extent_len)

    def dead(self, key, value):
        freed, sector, birth, _ = struct.unpack(">4Q", key)
        sectors, count = struct.unpack("<QI", value)
        need(birth < freed and count > 0, "an entry of the dead tree is malformed")
        self.add_run(sector, sectors, count)

    def snapshots(self):
        """Checks that snapshots have only extents of the pool or dead ones. Their dictionaries are their own."""
        live = {tree: {(key, value) for key, value in self.live.entries(tree)} for tree in (MAP, PATCHES)}
        for _, scope, _, flags, _, state in self.pool.snapshots():
            if flags & 1:
                continue
            files = self.files_of(state, scope)
            for tree in OF_SNAPSHOTS:
                for key, value in state.entries(tree, self.held):
                    if tree == DICTIONARIES or tree in live and (scope == 1 or u64be(key) in files):
                        pointer = Pointer(value)
                        self.held(pointer)
                        if (key, value) not in live.get(tree, ()):
                            self.content(state, pointer)

    def held(self, pointer):
        run = pointer.run(self.pool)
        need(run is None or self.lengths.get(run[0]) == run[1], f"a snapshot has lost sector {pointer.sector}")
        if run:
            self.fill(pointer)

    def files_of(self, state, scope):
        found, ahead = {scope}, [scope]
        while ahead:
            prefix = b"\1" + struct.pack(">Q", ahead.pop())
            for key, value in state.tree(NAMES).items():
                if key[:9] == prefix and (file := int.from_bytes(value[1:], "little")) not in found:
                    found.add(file)
                    ahead.append(file)
        return found

    def references(self):
        """Checks the refs tree: the number of pointers to an extent, and the hash of its content."""
        entries = dict(self.live.entries(REFS))
        segment = None
        for key, value in entries.items():
            if len(key) == 16:
                self.part(segment, key, value)
                continue
            count, kind, parts, reserved, birth, length, stored_len = struct.unpack_from("<IBB2sQII", value)
            sector = u64be(key)
            need(is_zero(reserved) and self.pointers[sector] == count, f"sector {sector} has {count} references noted")
            sectors = -(-stored_len // self.pool.sector)
            need(self.lengths[sector] == sectors, "the length of a shared extent is wrong")
            values = length, stored_len, sectors * self.pool.sector
            self.count(COUNTED, 1, *values)
            need(parts == 0 or parts in (1, 2) and kind == 0, "a segment has a hash, or a mark is unknown")
            segment = (sector, self.live.extent(Pointer(value[24:]))) if parts == 2 else None
            further = 0 if parts else count - 1
            self.count(SHARED, further, *(further * value for value in values))
            need(kind in HASHES or parts == 2 or len(value) == 24, "a kind of hash is unknown")
            if kind:
                pointer = Pointer(value[56:])
                need(pointer.sector == sector and pointer.birth >= birth, "a hash belongs to another extent")
                need(HASHES[kind](self.live.extent(pointer)) == value[24:56], "the hash of an extent is wrong")
        for sector, count in self.pointers.items():
            need(count == 1 or struct.pack(">Q", sector) in entries, f"sector {sector} is shared but not counted")

    def part(self, segment, key, value):
        """Checks an entry by which bytes of a segment can be found."""
        offset, length, kind, reserved = struct.unpack_from("<IIB3s", value)
        need(len(value) in (12, 36) and is_zero(reserved) and kind in HASHES, "the entry of a part is malformed")
        need(segment and segment[0] == u64be(key), "a part belongs to no segment")
        content = segment[1][offset : offset + length]
        need(length == len(content) > 0, "a part is not inside its segment")
        kept = key[8:] + value[12:]
        need(HASHES[kind](content)[: len(kept)] == kept, "the hash of a part is wrong")

    def space(self):
        """Checks that each sector up to the end is used once, or free once."""
        superblock, sector = self.superblock, self.pool.sector
        runs = [(0, EXTENTS // sector), *superblock.windows, *self.lengths.items()]
        if superblock.end * sector >= RESERVED + RESERVED_LEN:
            runs.append((RESERVED // sector, RESERVED_LEN // sector))
        space = [(u64be(key), int.from_bytes(value, "little")) for key, value in self.live.entries(SPACE)]
        freed = [(u64be(key, 8), int.from_bytes(value, "little")) for key, value in self.live.entries(FREED)]
        counts = len(freed), sum(n for _, n in freed), sum(n for _, n in space)
        noted = superblock.freed_count, superblock.freed_sectors, superblock.space_sectors
        need(counts == noted, "the counts of free space are wrong")
        at = 0
        for start, sectors in sorted(runs + space + freed):
            need(start == at and sectors > 0, f"sectors from {min(at, start)} on are used twice or not at all")
            at += sectors
        need(at == superblock.end, "the last extent does not end at the end of the pool")

    def statistics(self):
        for group, (found, noted) in enumerate(zip(self.stats, self.superblock.stats)):
            need(tuple(found) == tuple(noted), f"group {group} of the statistics: {found} found, {noted} noted")

    def roots(self):
        """Checks that the tree of roots agrees with the superblock."""
        if ROOTS not in self.live.roots:
            return
        leaf = self.live.tree(ROOTS)
        roots = {key[0]: value for key, value in leaf.items() if key != b"\xff"}
        live = {tree: pointer for tree, pointer in self.live.roots.items() if tree != ROOTS}
        need(roots.keys() == live.keys(), "the tree of roots names other trees")
        for tree, value in roots.items():
            need(vars(Pointer(value)) == vars(live[tree]), f"the tree of roots has another root for tree {tree}")

    def names(self):
        """Checks that every name has entries in both directions, and every file attributes."""
        entries, file_bytes = self.live.tree(NAMES), 0
        there, back = set(), set()
        for key, value in entries.items():
            if key[0] == 1:
                file = int.from_bytes(value[1:], "little")
                there.add((file, key[1:]))
                need(self.live.attributes(file)[0] == value[0], "a name and its file differ in kind")
            elif key[0] == 6:
                need(not value, "an entry of a name has a value")
                back.add((u64be(key, 1), key[9:]))
            elif key[0] == 2:
                kind, _, length = self.live.attributes(u64be(key, 1))
                file_bytes += length if KINDS[kind] == "file" else 0
        need(back <= there and len(there - back) <= 1, "names and their back entries differ")
        need(file_bytes == self.superblock.file_bytes, f"files have {file_bytes} bytes, another number is recorded")
        for _, kind, file in self.live.names():
            if KINDS[kind] == "link":
                need(len(self.live.target(file)) == self.live.attributes(file)[2], "the length of a target is wrong")

    def index(self):
        """Checks the runs of the dedup index: entries ascend, each in its block and in the filter of its part."""
        blocks, filters, headers = {}, {}, {}
        for key, value in self.live.entries(INDEX):
            run, kind, first = struct.unpack(">IBQ", key)
            need(run > 0 and kind < 3, "a key of the index is malformed")
            data = self.live.content(Pointer(value))
            if kind == 0:
                headers[run] = struct.unpack("<4QI", data)
            elif kind == 1:
                filters.setdefault(run, []).append((first, data))
            else:
                entries = list(struct.iter_unpack("<QQ", data))
                need(1 <= len(entries) <= 512 and first <= entries[0][0], "a block begins before its key")
                blocks.setdefault(run, []).extend(entries)
        need(headers.keys() >= blocks.keys(), "a run has no header")
        for run, (count, start, *_) in headers.items():
            entries = blocks.get(run, [])
            numbers = [number for number, _ in entries]
            need(numbers == sorted(set(numbers)), "the entries of a run do not ascend")
            need(sum(number >= start for number in numbers) == count, "the number of entries of a run is wrong")
            for number in filter(lambda number: number >= start, numbers):
                data = [data for first, data in filters[run] if first <= number][-1]
                need(may_hold(data, number), "a filter lacks an entry")


def may_hold(data, number):
    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
        z = (z ^ z >> 27) * 0x94D049BB133111EB % (1 << 64)
        return z ^ z >> 31

    a = mix((number + 0x9E3779B97F4A7C15) % (1 << 64))
    b = mix((a + 0x9E3779B97F4A7C15) % (1 << 64))
    block = (a >> 32) * (len(data) // 64) >> 32
    bits = int.from_bytes(data[64 * block : 64 * block + 64], "little")
    return all(bits >> (b >> 9 * n & 511) & 1 for n in range(7))


def verify(path):
    """Raises Damaged at the first contradiction to the document. Returns the pool and the verifier."""
    pool = Pool(path)
    need(pool.damaged_slots == 0, "a slot of the ring is neither valid nor zero")
    verifier = Verifier(pool)
    for step in ("live_trees", "snapshots", "references", "space", "statistics", "roots", "names", "index"):
        getattr(verifier, step)()
    for _, *_, state in pool.snapshots():
        for _, kind, file in state.names():
            need(state.attributes(file)[0] == kind, "a name in a snapshot and its file differ in kind")
    return pool, verifier


def main(paths):
    for path in paths:
        pool, verifier = verify(path)
        print(f"{path}: whole, txg {pool.superblock.txg}, {len(verifier.lengths)} extents, {pool.superblock.names}")
        for beside in pool.beside():
            print(f"{path}: beside it lies {beside}, which a database in it may need")
    return 0
