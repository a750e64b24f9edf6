#!/usr/bin/env python3
"""A second reader of pools, to prove docs/format.md and docs/page-filter.md: it relies only on their text and shares
nothing with the engine. It is slow, strict, and never writes to a pool.

    read_pool.py list POOL[@SNAPSHOT]            names, kinds and lengths
    read_pool.py extract POOL[@SNAPSHOT] DIR     every directory, file and symbolic link
    read_pool.py verify POOL...                  every checksum, every rule of the document that can be checked
    read_pool.py self-test                       verifies the golden pools, and compares their content with the
                                                 digests in golden.json; with HARDPACK=path/of/hardpack also with
                                                 what hardpack extracts, of a fresh pool too (see self_test.py)

It needs `pip install zstandard lz4 xxhash blake3`.
"""

import hashlib
import lzma
import os
import stat
import struct
import sys
import zlib
from pathlib import Path

import blake3
import lz4.block
import xxhash
import zstandard

import page_filter

BLOCK, RING, SLOTS, EXTENTS = 4096, 8192, 8, 40960
RESERVED, RESERVED_LEN = 1 << 30, 64 << 10
NAMES, MAP, PATCHES, SPACE, FREED, REFS, DICTIONARIES, ROOTS, DEAD, SNAPSHOTS, INDEX = range(11)
OF_SNAPSHOTS = (NAMES, MAP, PATCHES, DICTIONARIES)
FEATURES = """deltas dictionaries roots snapshots shared-extents names page-filter generations
    snapshot-ids pinned-readers reader-slots special-files pages-apart segments
    parts-by-content chunks passing-superblocks inflated transformed lzma differences
    short-part-hashes filtered-differences second-bases""".split()
EXTENT, EMBEDDED, ZEROS = 1, 2, 3
DELTA, PAGE_FILTER, PAGES_APART, INFLATED, TRANSFORMED, DIFFERENCE, FILTERED_DIFFERENCE = range(1, 8)
DIFFERENCES = DIFFERENCE, FILTERED_DIFFERENCE
KINDS = {1: "file", 2: "directory", 3: "link", 4: "fifo", 5: "socket", 6: "char", 7: "block"}
SPECIAL = {4: stat.S_IFIFO, 5: stat.S_IFSOCK, 6: stat.S_IFCHR, 7: stat.S_IFBLK}
PAGE_LEN = 4096


class Damaged(Exception):
    """The pool contradicts the document."""


def need(condition, what):
    if not condition:
        raise Damaged(what)


def u64be(key, at=0):
    return int.from_bytes(key[at : at + 8], "big")


def is_zero(data):
    return not any(data)


CHECKSUMS = {
    1: (16, lambda data: xxhash.xxh3_128_intdigest(data).to_bytes(16, "little")),
    2: (32, lambda data: blake3.blake3(data).digest()),
    3: (32, lambda data: hashlib.sha256(data).digest()),
}
HASHES = {1: CHECKSUMS[2][1], 2: CHECKSUMS[3][1]}


# The codecs: each takes the stored bytes, the decoded length, and a dictionary or b"".


def raw(data, length, _):
    return data


def lzjb(data, length, _):
    out, at = bytearray(), 0
    while at < len(data):
        group, at = data[at], at + 1
        need(at < len(data), "lzjb: a group has no items")
        for bit in range(8):
            if at == len(data):
                break
            if group >> bit & 1 == 0:
                out.append(data[at])
                at += 1
                continue
            need(at + 2 <= len(data), "lzjb: a match is cut short")
            count, distance = (data[at] >> 2) + 3, (data[at] & 3) << 8 | data[at + 1]
            at += 2
            need(0 < distance <= len(out) and len(out) + count <= length, "lzjb: a match lies outside")
            for _ in range(count):
                out.append(out[-distance])
    return bytes(out)


def zle(data, length, _):
    out, at = bytearray(), 0
    while at < len(data):
        count, at = data[at] + 1, at + 1
        if count <= 64:
            need(at + count <= len(data), "zle: literals are cut short")
            out += data[at : at + count]
            at += count
        else:
            out += bytes(count - 64)
        need(len(out) <= length, "zle: too long")
    return bytes(out)


def gzip(data, length, _):
    stream = zlib.decompressobj(-15)
    out = stream.decompress(data, length + 1)
    need(stream.eof and not stream.unused_data, "deflate: the stream does not end with the bytes")
    return out


def lz4_block(data, length, dictionary):
    if length == 0:
        return b""
    return lz4.block.decompress(data, uncompressed_size=length, dict=dictionary[-65536:] or None)


def zstd(data, length, dictionary):
    dictionary = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    decoder = zstandard.ZstdDecompressor(dict_data=dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    return decoder.decompress(data, max_output_size=max(length, 1))


def lzma2(data, length, _):
    window = {"id": lzma.FILTER_LZMA2, "dict_size": max(length, 4096)}
    stream = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[window])
    out = stream.decompress(data, length + 1)
    need(stream.eof and not stream.unused_data, "lzma: the stream does not end with the bytes")
    return out


CODECS = {0: raw, 1: lzjb, 2: zle, 3: gzip, 4: lz4_block, 5: zstd, 6: lzma2}


def zstd_after(base, data, length):
    """Decodes a frame that follows on other content."""
    base = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    decoder = zstandard.ZstdDecompressor(dict_data=base, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    return decoder.decompress(data, max_output_size=length)


def lzma2_after(base, data, length):
    """Decodes a stream that follows on other content: as the rest of one that begins with that, not compressed."""
    parts = [base[at : at + 65536] for at in range(0, len(base), 65536)]
    chunks = [bytes([2 if at else 1]) + (len(part) - 1).to_bytes(2, "big") + part for at, part in enumerate(parts)]
    return lzma2(b"".join([*chunks, data]), len(base) + length, b"")[len(base) :]


def behind_form(data, record_len):
    """Splits off the length of the filtered form of a record."""
    need(len(data) >= 4, "a filtered record is too short")
    length = int.from_bytes(data[-4:], "little")
    need(length <= 2 * record_len + 4096, "a filtered form is too long")
    return data[:-4], length


def decompress_after(codec, base, data, length):
    need(codec in (5, 6), f"codec {codec} makes no differences")
    try:
        out = (zstd_after if codec == 5 else lzma2_after)(base, data, length)
    except (zstandard.ZstdError, lzma.LZMAError) as error:
        raise Damaged(f"codec {codec}: {error}") from error
    need(len(out) == length, f"codec {codec}: {len(out)} bytes, {length} expected")
    return out


def decompress(codec, data, length, dictionary=b""):
    need(codec in CODECS, f"codec {codec} is unknown")
    try:
        out = CODECS[codec](data, length, dictionary)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, zlib.error, lzma.LZMAError) as error:
        raise Damaged(f"codec {codec}: {error}") from error
    need(len(out) == length, f"codec {codec}: {len(out)} bytes, {length} expected")
    return out


def deflated_again(form, length):
    """Returns the extent of an inflated form."""
    need(len(form) >= 4, "an inflated form is too short")
    count = int.from_bytes(form[:4], "little")
    at = 4 + 14 * count
    need(at <= len(form), "the directory of an inflated form is too long")
    gaps, lens, text_lens = (struct.unpack_from(f"<{count}I", form, 4 + 4 * count * column) for column in range(3))
    settings = struct.unpack_from(f"<{count}H", form, 4 + 12 * count)
    need(sum(lens) + sum(gaps) <= length, "the streams do not fit")
    text_at = at + length - sum(lens)
    need(text_at + sum(text_lens) == len(form), "the texts have another length")
    out = bytearray()
    for gap, stream_len, text_len, bits in zip(gaps, lens, text_lens, settings):
        level, memory, window, strategy = (bits >> shift & 15 for shift in (0, 4, 8, 12))
        valid = 1 <= level <= 9 and 1 <= memory <= 9 and 9 <= window <= 15 and strategy <= 4
        need(valid and stream_len >= 64 and text_len >= 1, "an entry of a stream is impossible")
        out += form[at : at + gap]
        compressor = zlib.compressobj(level, zlib.DEFLATED, -window, memory, strategy)
        stream = compressor.compress(form[text_at : text_at + text_len]) + compressor.flush()
        need(len(stream) == stream_len, "zlib makes a stream of another length")
        out += stream
        at, text_at = at + gap, text_at + text_len
    return bytes(out + form[at : at + length - len(out)])


def runs_behind(data, length):
    """Splits the bytes of a transformed record into what its codec wrote and its runs."""
    need(len(data) >= 4, "a transformed record is too short")
    count = int.from_bytes(data[-4:], "little")
    at = len(data) - 4 - 14 * count
    need(at >= 0, "the directory of a transformed record is too long")
    runs, end = [], 0
    for start, run_len, position, transform, parameter in struct.iter_unpack("<IIIBB", data[at:-4]):
        need(end <= start and 64 <= run_len and start + run_len <= length, "the place of a run is impossible")
        if transform == 5:
            need(parameter < 128 and parameter & 0x43 != 0x40, "a layout of samples is impossible")
        else:
            alignment = {1: 1, 2: 4, 3: 2, 4: 4}.get(transform)
            need(alignment and parameter == 0, "a transform is unknown")
            need(position % alignment == 0, "machine code is not aligned")
        end = start + run_len
        runs.append((start, end, position, transform, parameter))
    return data[:at], runs


def turned_back(data, runs):
    """Returns the extent whose runs were transformed."""
    out = bytearray(data)
    for start, end, position, transform, parameter in runs:
        run = data[start:end]
        if transform == 5:
            out[start:end] = samples(run, (parameter & 3) + 1, (parameter >> 2 & 15) + 1, parameter & 64)
        elif transform == 4:
            out[start:end] = arm64(run, position)
        else:
            filter = {1: lzma.FILTER_X86, 2: lzma.FILTER_ARM, 3: lzma.FILTER_ARMTHUMB}[transform]
            chain = [{"id": filter, "start_offset": position}, {"id": lzma.FILTER_LZMA2, "dict_size": 4096}]
            # LZMA2 has chunks that are not compressed.
            parts = [run[at : at + 65536] for at in range(0, len(run), 65536)]
            stream = b"".join(b"\1" + (len(part) - 1).to_bytes(2, "big") + part for part in parts) + b"\0"
            out[start:end] = lzma.decompress(stream, format=lzma.FORMAT_RAW, filters=chain)
    return bytes(out)


def samples(run, width, channels, is_big_endian):
    """Adds up differences whose least significant bytes come first, then the next ones."""
    count = len(run) // width
    out, before = bytearray(), [0] * channels
    for n in range(count):
        difference = sum(run[plane * count + n] << 8 * plane for plane in range(width))
        value = before[n % channels] = (before[n % channels] + difference) % (1 << 8 * width)
        out += value.to_bytes(width, "big" if is_big_endian else "little")
    return out + run[count * width :]


def arm64(run, position):
    out = bytearray(run)
    for at in range(0, len(run) - 3, 4):
        word, here = int.from_bytes(run[at : at + 4], "little"), position + at
        if word >> 26 == 0x25:
            word = 0x25 << 26 | (word - (here >> 2)) & 0x3FFFFFF
        elif word & 0x9F000000 == 0x90000000:
            page = word >> 29 & 3 | word >> 3 & 0x1FFFFC
            if (page + 0x20000) & 0x1C0000:
                continue
            page -= here >> 12
            word = 0x90000000 | word & 0x1F | (page & 3) << 29 | (page & 0x3FFFC) << 3 | -(page & 0x20000) & 0xE00000
        out[at : at + 4] = word.to_bytes(4, "little")
    return out


class Pointer:
    """The part of a tree entry that says where bytes are and how they are encoded."""

    FRONT = struct.Struct("<BBhBBBBQIIIIB3sIQ")

    def __init__(self, data):
        need(len(data) >= 48, "a pointer is cut short")
        (self.kind, self.codec, self.level, _, self.filter, checksum_kind, self.gain, self.birth, self.len,
         self.stored_len, self.extent_len, self.part_offset, self.span_log2, reserved, self.dictionary,
         self.sector) = self.FRONT.unpack(data[:48])  # fmt: skip
        self.behind = data[48:]
        need(is_zero(reserved), "reserved bytes of a pointer are not zero")
        need(self.filter in range(8), "a filter is unknown")
        extent_only = self.kind == EXTENT and self.dictionary == 0
        need(self.filter not in (INFLATED, TRANSFORMED) or extent_only, "the filter of a record is impossible")
        has_base = self.kind == EXTENT and self.dictionary != 0
        need(self.filter not in DIFFERENCES or has_base, "a difference has no base")
        need(self.gain == 0 or self.filter in (PAGE_FILTER, PAGES_APART), "there is a gain without a filter")
        need(max(self.extent_len, self.stored_len) <= 16 << 20, "an extent is too long")
        if self.kind == EXTENT:
            need(checksum_kind in CHECKSUMS, "the kind of a checksum is unknown")
            width, self.sum = CHECKSUMS[checksum_kind]
            need(len(self.behind) == width and self.stored_len > 0, "the length of a pointer is wrong")
        else:
            need(checksum_kind == 0 and self.sector == 0, "a pointer without an extent names one")
            need(self.kind in (EMBEDDED, ZEROS), "the kind of a pointer is unknown")
            need(len(self.behind) == self.stored_len <= 112, "the length of an embedded pointer is wrong")
            need(self.kind == EMBEDDED or self.filter == 0 and self.stored_len == 0, "zeros have stored bytes")
        if self.filter == DELTA:
            need(self.part_offset == 0 and self.len <= 65536, "a delta covers a part, or is too long")
        else:
            need(self.part_offset + self.len <= self.extent_len, "a pointer reaches beyond its extent")

    def is_base(self):
        """Whether this entry of the dictionaries stands for an extent that others differ from."""
        is_impossible = self.filter in (DELTA, FILTERED_DIFFERENCE) or self.span_log2 != 0
        is_impossible |= (self.dictionary != 0) != self.is_second_base()
        return self.kind == EXTENT and self.len == 0 < self.extent_len and not is_impossible

    def is_second_base(self):
        """Whether this base is a difference itself."""
        return self.filter == DIFFERENCE

    def span(self):
        """Returns how many bytes of its file a record covers: a chunk just its own."""
        return 1 << self.span_log2 if self.span_log2 else self.len

    def run(self, pool):
        """Returns the first sector and the number of sectors; None if there is no extent."""
        return (self.sector, -(-self.stored_len // pool.sector)) if self.kind == EXTENT else None


class Superblock:
    """One committed state."""

    def __init__(self, block, guid):
        """Raises Damaged if the slot is not valid."""
        need(block[:8] == b"HPKsuper" and block[8:24] == guid, "not a superblock of this pool")
        need(CHECKSUMS[1][1](block[:4080]) == block[4080:], "the checksum of a superblock is wrong")
        self.compat, self.read_only, self.incompat, self.txg, self.durable = struct.unpack_from("<5Q", block, 24)
        self.names = block[2416:2928].rstrip(b"\0").decode("ascii", "replace")
        self.unknown = self.incompat >> len(FEATURES)
        if self.unknown:
            return
        self.flags, self.next_slot = struct.unpack_from("<II", block, 64)
        (self.end, self.freed_count, self.freed_sectors, self.space_sectors, self.next_file_id,
         window_count) = struct.unpack_from("<6Q", block, 72)  # fmt: skip
        runs = list(struct.iter_unpack("<QQ", block[120:504]))
        need(window_count <= 24 and not any(map(any, runs[window_count:])), "windows are malformed")
        self.windows = runs[:window_count]
        self.roots = {}
        for tree in range(15):
            at = 504 + 162 * tree if tree < 8 else 2928 + 162 * (tree - 8)
            length, data = struct.unpack_from("<H", block, at)[0], block[at + 2 : at + 162]
            need(length <= 160 and is_zero(data[length:]), "a root is malformed")
            if length:
                self.roots[tree] = Pointer(data[:length])
        stats = struct.unpack_from("<77Q", block, 1800)
        self.file_bytes, self.stats = stats[0], [stats[at : at + 4] for at in range(1, 77, 4)]
        need(is_zero(block[4062:4080]), "reserved bytes of a superblock are not zero")
        need(all(tree < 11 for tree in self.roots), "a root belongs to an unknown tree")
        need(self.durable <= self.txg < 1 << 62 and self.next_file_id < 1 << 62, "a number is too large")
        need(self.flags < (8 if self.incompat >> 16 & 1 else 4), "a flag is unknown")
        need(self.next_slot <= SLOTS and self.end <= 1 << 50, "a field is impossible")
        inside = [self.freed_sectors, self.space_sectors, *map(sum, self.windows)]
        need(self.freed_count <= self.freed_sectors and max(inside) <= self.end, "space lies beyond the end")


class State:
    """The trees of a committed state, or of a snapshot."""

    def __init__(self, pool, roots):
        self.pool, self.roots, self.loaded = pool, roots, {}

    def entries(self, tree, visit=lambda pointer: None, newer=0):
        """Yields the keys and values of a tree, in order. With `newer`, leaves out the entries below older nodes."""
        if tree in self.roots:
            yield from self._below(tree, self.roots[tree], None, (b"", None), visit, newer)

    def _below(self, tree, pointer, level, bounds, visit, newer):
        if pointer.birth <= newer:
            return
        node_level, entries = self.pool.node(tree, pointer)
        need(level is None or node_level == level, "the level of a child is wrong")
        visit(pointer)
        for n, (key, value) in enumerate(entries):
            need(bounds[0] <= key and (bounds[1] is None or key < bounds[1]), "a key is outside its node's bounds")
            if node_level == 0:
                yield key, value
                continue
            above = entries[n + 1][0] if n + 1 < len(entries) else bounds[1]
            yield from self._below(tree, Pointer(value), node_level - 1, (key, above), visit, newer)

    def tree(self, tree):
        """Returns a whole tree in memory."""
        if tree not in self.loaded:
            self.loaded[tree] = dict(self.entries(tree))
        return self.loaded[tree]

    def extent(self, pointer):
        """Returns the whole extent of a pointer, decompressed with the dictionaries of this state."""
        if pointer.kind == ZEROS:
            return bytes(pointer.extent_len)
        data, dictionary = self.pool.stored(pointer), b""
        if pointer.dictionary:
            value = self.tree(DICTIONARIES).get(struct.pack(">I", pointer.dictionary))
            need(value is not None, f"there is no dictionary {pointer.dictionary}")
            found = Pointer(value)
            if pointer.filter in DIFFERENCES:
                need(found.is_base(), "a base is impossible")
            if pointer.filter == DIFFERENCE:
                return decompress_after(pointer.codec, self.text(found), data, pointer.extent_len)
            if pointer.filter == FILTERED_DIFFERENCE:
                data, length = behind_form(data, pointer.extent_len)
                form = decompress_after(pointer.codec, self.forms(found), data, length)
                return page_filter.decode(form, pointer.extent_len)
            need(found.dictionary == 0 and 0 < found.len and found.extent_len <= 262144, "a dictionary is impossible")
            dictionary = self.content(found)
        if pointer.filter == INFLATED:
            need(len(data) >= 4, "an inflated record is too short")
            length = int.from_bytes(data[-4:], "little")
            need(length <= 1 << 25, "an inflated form is too long")
            return deflated_again(decompress(pointer.codec, data[:-4], length), pointer.extent_len)
        if pointer.filter == TRANSFORMED:
            data, runs = runs_behind(data, pointer.extent_len)
            return turned_back(decompress(pointer.codec, data, pointer.extent_len), runs)
        if pointer.filter == PAGES_APART:
            return self.joined(pointer, data, dictionary)
        if pointer.filter != PAGE_FILTER:
            return decompress(pointer.codec, data, pointer.extent_len, dictionary)
        data, length = behind_form(data, pointer.extent_len)
        return page_filter.decode(decompress(pointer.codec, data, length, dictionary), pointer.extent_len)

    def text(self, base):
        """Returns what segments are differences from: a base, behind the one that it differs from itself."""
        if not base.is_second_base():
            return self.extent(base)
        value = self.tree(DICTIONARIES).get(struct.pack(">I", base.dictionary))
        need(value is not None, f"there is no dictionary {base.dictionary}")
        first = Pointer(value)
        need(first.is_base() and not first.is_second_base(), "the base of a base is impossible")
        return self.extent(first) + self.extent(base)

    def forms(self, pointer):
        """Returns what filtered records are differences from, of a base."""
        need(pointer.filter in (PAGE_FILTER, PAGES_APART), "a base has no filtered form")
        data = self.pool.stored(pointer)
        if pointer.filter == PAGE_FILTER:
            data, length = behind_form(data, pointer.extent_len)
            return decompress(pointer.codec, data, length)
        _, _, rest, apart = self.forms_apart(pointer, data, b"")
        return apart + rest

    def forms_apart(self, pointer, data, dictionary):
        """Returns the length of a page, the numbers of the pages apart, and the forms of the rest and of these pages."""
        need(len(data) >= 13, "a record with pages apart is too short")
        page_log2, apart_len, apart_form_len, rest_form_len = struct.unpack("<BIII", data[-13:])
        need(9 <= page_log2 <= 16, "the length of a page is impossible")
        page_len = 1 << page_log2
        page_count = pointer.extent_len // page_len
        bitmap_at = len(data) - 13 - (page_count + 7) // 8
        rest_len = bitmap_at - apart_len
        need(rest_len >= 0, "the pages apart do not fit")
        bits = int.from_bytes(data[bitmap_at:-13], "little")
        need(0 < bits < 1 << page_count, "the pages apart are none of the record")
        pages = [page for page in range(page_count) if bits >> page & 1]
        need(rest_form_len <= 2 * pointer.extent_len + 4096, "a filtered form is too long")
        need(apart_form_len <= 2 * len(pages) * page_len + 4096, "a filtered form is too long")
        rest = decompress(pointer.codec, data[:rest_len], rest_form_len, dictionary)
        return page_len, pages, rest, decompress(pointer.codec, data[rest_len:bitmap_at], apart_form_len, dictionary)

    def joined(self, pointer, data, dictionary):
        """Returns a record that has pages apart."""
        page_len, pages, rest, apart = self.forms_apart(pointer, data, dictionary)
        record = bytearray(page_filter.decode(rest, pointer.extent_len))
        apart = page_filter.decode(apart, len(pages) * page_len)
        for index, page in enumerate(pages):
            record[page * page_len : (page + 1) * page_len] = apart[index * page_len : (index + 1) * page_len]
        return bytes(record)

    def content(self, pointer):
        """Returns the bytes of a pointer other than a delta."""
        return self.extent(pointer)[pointer.part_offset : pointer.part_offset + pointer.len]

    def pieces(self, tree):
        """Yields the records or patches of all files: (file, offset) and pointer."""
        for key, value in self.entries(tree):
            file, offset, pointer = u64be(key), u64be(key, 8), Pointer(value)
            span = pointer.span()
            need(len(key) == 16 and pointer.len > 0, "a record is malformed")
            if tree == MAP:
                need(pointer.filter != DELTA, "a record is a delta")
                if pointer.span_log2:
                    need(offset % span == 0, "a record is not in its slot")
                    need(pointer.len <= span and span >= PAGE_LEN, "a record is longer than its slot")
            yield file, offset, pointer

    def read(self, wanted, length):
        """Yields the runs of a file that are not zeros: offset and bytes."""
        patches = [(at, pointer) for file, at, pointer in self.by_file(PATCHES).get(wanted, [])]
        for _, at, pointer in self.by_file(MAP).get(wanted, []):
            slot = bytearray(pointer.span())
            slot[: pointer.len] = self.content(pointer)
            while patches and patches[0][0] < at + len(slot):
                start, patch = patches.pop(0)
                start -= at
                need(0 <= start and start + patch.len <= len(slot), "a patch lies outside its slot")
                if patch.filter == DELTA:
                    part = apply_delta(self.extent(patch), bytes(slot[start : start + patch.len]))
                else:
                    part = self.content(patch)
                slot[start : start + patch.len] = part
            yield at, bytes(slot[: max(length - at, 0)])
        need(not patches, "a patch lies over no record")

    def by_file(self, tree):
        if ("files", tree) not in self.loaded:
            files = self.loaded["files", tree] = {}
            for piece in self.pieces(tree):
                files.setdefault(piece[0], []).append(piece)
        return self.loaded["files", tree]

    # Names.

    def attributes(self, file):
        value = self.tree(NAMES).get(b"\2" + struct.pack(">Q", file))
        need(value is not None and len(value) in (32, 80), f"file {file} has no attributes")
        kind, reserved, mode, length, modified, parent = struct.unpack("<B3sIQqQ", value[:32])
        need(kind in KINDS and is_zero(reserved) and (len(value) == 80 or parent == 0), "attributes are malformed")
        major, minor = struct.unpack("<II", value[72:]) if len(value) == 80 else (0, 0)
        need(kind in (6, 7) or (major, minor) == (0, 0), "what is not a device has the number of one")
        need(kind not in SPECIAL or length == 0, "a special file has a length")
        return kind, mode, length

    def device(self, file):
        """Returns major and minor number of the node of a device."""
        value = self.tree(NAMES)[b"\2" + struct.pack(">Q", file)]
        return struct.unpack("<II", value[72:]) if len(value) == 80 else (0, 0)

    def names(self):
        """Yields all names: path, kind and file, each directory before its content."""
        directories = {}
        for key, value in self.tree(NAMES).items():
            if key[:1] == b"\1":
                need(len(value) == 9, "a directory entry is malformed")
                entry = key[9:], value[0], int.from_bytes(value[1:], "little")
                directories.setdefault(u64be(key, 1), []).append(entry)
        ahead = [(b"", 1)]
        while ahead:
            path, directory = ahead.pop()
            for name, kind, file in directories.get(directory, []):
                need(0 < len(name) < 256 and b"/" not in name and b"\0" not in name, "a name is malformed")
                yield path + name, kind, file
                if kind == 2:
                    ahead.append((path + name + b"/", file))

    def target(self, link):
        prefix = b"\7" + struct.pack(">Q", link)
        return b"".join(value for key, value in self.tree(NAMES).items() if key[:-1] == prefix)


def apply_delta(edits, below):
    out, at, to = bytearray(below), 0, 0

    def number():
        nonlocal at
        value = 0
        for shift in (0, 7, 14):
            need(at < len(edits), "a delta is cut short")
            value |= (edits[at] & 0x7F) << shift
            at += 1
            if edits[at - 1] < 0x80:
                return value
        raise Damaged("a number in a delta is too long")

    while at < len(edits):
        to += number()
        count = number()
        need(0 < count and to + count <= len(out) and at + count <= len(edits), "an edit lies outside")
        out[to : to + count] = edits[at : at + count]
        to, at = to + count, at + count
    return bytes(out)


class Pool:
    """A pool, opened in its newest intact state."""

    def __init__(self, path):
        self.path, self.file = Path(path), open(path, "rb")
        header = self.bytes(0, BLOCK)
        need(header[:16] == b"Hardpack pool\x1a\r\n", "not a pool")
        self.version, ashift, reserved, self.guid = struct.unpack_from("<IB3s16s", header, 16)
        need(self.version in (1, 2), f"version {self.version} is unknown")
        need(CHECKSUMS[1][1](header[:4080]) == header[4080:], "the checksum of the header is wrong")
        need(9 <= ashift <= 12 and is_zero(reserved + header[40:4080]), "the header is malformed")
        self.sector, self.damaged_slots = 1 << ashift, 0
        states = []
        for slot in range(SLOTS):
            block = self.bytes(RING + slot * BLOCK, BLOCK)
            try:
                states.append(Superblock(block, self.guid))
            except Damaged:
                self.damaged_slots += not is_zero(block)
        states.sort(key=lambda superblock: superblock.txg, reverse=True)
        need(states, "no superblock is valid")
        need(not states[0].unknown, f"the pool has features that this reader does not know, among {states[0].names}")
        states = [state for state in states if not state.unknown]
        for self.superblock in states:
            self.live = State(self, self.superblock.roots)
            try:
                self.check_new()
                return
            except Damaged:
                continue
        raise Damaged("no state is intact")

    def check_new(self):
        """Reads everything in the state that is not in the durable one before it."""
        superblock = self.superblock
        if superblock.flags & 1 or superblock.durable == superblock.txg:
            return
        for tree in superblock.roots:
            for _, value in self.live.entries(tree, newer=superblock.durable):
                if tree in (MAP, PATCHES, DICTIONARIES, INDEX) and Pointer(value).birth > superblock.durable:
                    self.stored(Pointer(value))

    def bytes(self, offset, length):
        return os.pread(self.file.fileno(), length, offset)

    def stored(self, pointer):
        """Returns the stored bytes, and checks their checksum."""
        if pointer.kind != EXTENT:
            return pointer.behind
        data = self.bytes(pointer.sector * self.sector, pointer.stored_len)
        need(len(data) == pointer.stored_len, "the pool ends within an extent")
        need(pointer.sum(data) == pointer.behind, f"the checksum at sector {pointer.sector} is wrong")
        return data

    def node(self, tree, pointer):
        """Returns the level and the entries of a node."""
        need((pointer.kind, pointer.codec, pointer.filter, pointer.dictionary) == (EXTENT, 0, 0, 0), "malformed for a node")
        data = self.stored(pointer)
        magic, found, level, codec, reserved, birth, payload_len, stored_len, guid, digest = struct.unpack(
            "<4sBBBBQII8sQ", data[:40]
        )
        need(magic == b"HPKN" and found == tree and reserved == 0 and guid == self.guid[:8], "not a node of this tree")
        need(birth == pointer.birth and 2 <= payload_len <= 61440 and level <= 24, "a node is malformed")
        need(len(data) == 40 + stored_len and xxhash.xxh3_64_intdigest(data[40:]) == digest, "a node is damaged")
        need(pointer.len == pointer.extent_len == payload_len, "the length in the pointer to a node is wrong")
        payload = decompress(codec, data[40:], payload_len)
        entries, at = [], 2
        for _ in range(int.from_bytes(payload[:2], "little")):
            need(at + 4 <= payload_len, "the entries of a node overrun it")
            key_len, value_len = struct.unpack_from("<HH", payload, at)
            need(key_len <= 512 and value_len <= 1024, "an entry is too long")
            at += 4 + key_len + value_len
            entry = payload[at - value_len - key_len : at - value_len], payload[at - value_len : at]
            need(not entries or entries[-1][0] < entry[0], "the keys of a node do not ascend")
            entries.append(entry)
        need(entries and at == payload_len, "the entries of a node do not fill it")
        return level, entries

    def snapshots(self):
        """Yields the number, scope, flags, name and trees of each snapshot."""
        for key, value in self.live.entries(SNAPSHOTS):
            if key[:1] == b"\x80":
                continue
            scope, txg, _, flags, name_len, reserved = struct.unpack_from("<QQqIHH", value)
            name, at, roots = value[104 : 104 + name_len], 104 + name_len, {}
            for tree in OF_SNAPSHOTS:
                length = int.from_bytes(value[at : at + 2], "little")
                if length:
                    roots[tree] = Pointer(value[at + 2 : at + 2 + length])
                    need(roots[tree].birth <= txg, "the root of a snapshot is younger than the snapshot")
                at += 2 + length
            need(at == len(value) and reserved == 0 and flags < 4, "a snapshot is malformed")
            yield u64be(key), scope, txg, flags, name, State(self, roots)

    def state(self, name):
        """Returns the state of a snapshot of the whole pool, or of the pool itself without a name."""
        if not name:
            return self.live
        found = [state for _, scope, _, _, own, state in self.snapshots() if scope == 1 and own == name.encode()]
        need(found, f"there is no snapshot '{name}' of the whole pool")
        return found[0]

    def generation(self, file):
        """Returns the suffix of the names of a file's log and journal."""
        entries = self.live.tree(NAMES)
        own = [entries.get(b"\x0d" + struct.pack(">Q", number), bytes(8)) for number in (1, file)]
        of_pool, of_file = (int.from_bytes(value, "little") for value in own)
        if not of_pool or not of_file:
            generation = of_pool | of_file
        else:
            turned = (of_pool << 32 | of_pool >> 32) & (1 << 64) - 1
            generation = max(turned ^ of_file, 1)
        return f"{generation:016x}" if generation else ""

    def beside(self):
        """Yields logs and journals that SQLite would use along with databases in the pool."""
        for _, kind, file in self.live.names():
            base = f"{self.path}" if file == 2 else f"{self.path}-db{file}"
            ending = self.generation(file)
            for path in (base + "-wal" + ending, base + "-journal" + ending) if kind == 1 else ():
                if os.path.exists(path) and os.path.getsize(path):
                    yield path


def list_names(pool, state):
    for path, kind, file in sorted(state.names()):
        length = state.attributes(file)[2]
        print(f"{KINDS[kind]:9} {length:12} {file:6} {path.decode(errors='surrogateescape')}")


def digests(state):
    """Returns the SHA-256 of every file and the targets of links, by path."""
    found = {}
    for path, kind, file in state.names():
        length, digest, at = state.attributes(file)[2], hashlib.sha256(), 0
        if kind == 1:
            for offset, data in state.read(file, length):
                digest.update(bytes(offset - at) + data)
                at = offset + len(data)
            digest.update(bytes(length - at))
        found[os.fsdecode(path)] = digest.hexdigest() if kind == 1 else KINDS[kind]
        if kind == 3:
            found[os.fsdecode(path)] = os.fsdecode(state.target(file))
        elif kind in (6, 7):
            found[os.fsdecode(path)] += " {}, {}".format(*state.device(file))
    return found


def extract(state, directory):
    os.makedirs(directory, exist_ok=True)
    for path, kind, file in state.names():
        to = os.path.join(os.fsencode(directory), path)
        if kind == 2:
            os.mkdir(to)
        elif kind == 3:
            os.symlink(state.target(file), to)
        elif kind in SPECIAL:
            os.mknod(to, SPECIAL[kind] | state.attributes(file)[1] & 0o777, os.makedev(*state.device(file)))
        else:
            with open(to, "xb") as out:
                length = state.attributes(file)[2]
                for offset, data in state.read(file, length):
                    out.seek(offset)
                    out.write(data)
                out.truncate(length)


def main(arguments):
    command, operands = (arguments + [""])[0], arguments[1:]
    if command == "self-test" and not operands:
        import self_test

        return self_test.main()
    if command == "verify" and operands:
        import verify

        return verify.main(operands)
    if (command, len(operands)) not in (("list", 1), ("extract", 2)):
        print(__doc__, file=sys.stderr)
        return 2
    path, _, name = operands[0].partition("@") if not os.path.exists(operands[0]) else (operands[0], "", "")
    pool = Pool(path)
    if command == "list":
        list_names(pool, pool.state(name))
    else:
        extract(pool.state(name), operands[1])
    for path in pool.beside():
        print(f"beside the pool lies {path}, which a database in it may need", file=sys.stderr)
    return 0


if __name__ == "__main__":
    import read_pool  # So that there is one class of each kind, whoever imports it.

    try:
        sys.exit(read_pool.main(sys.argv[1:]))
    except (read_pool.Damaged, page_filter.Malformed, OSError) as error:
        sys.exit(f"read_pool.py: {error}")
