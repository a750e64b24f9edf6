"""Decodes the filtered form of a record, as docs/page-filter.md says; the names come from that page.

    decode(form, record_len) -> the record
"""

import struct

CONTROL, SYMBOLS, PLANES, TEXT, BYTES, REST = range(6)
KEPT, ZERO, FIRST_GROUP = 0, 1, 2
HEADER, RANKS, HOLES, LEFTOVER = 1, 2, 4, 8
INDEX_INTERIOR, TABLE_INTERIOR, INDEX_LEAF, TABLE_LEAF = 2, 5, 10, 13
NULL, INT, DECIMAL, DOUBLE, TEXTS, BLOBS, CUT, ABSENT, WIDE = range(9)
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
BODY_LEN = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0]


class Malformed(Exception):
    """The bytes are not a filtered form."""


def need(condition, what):
    if not condition:
        raise Malformed(what)


def wrap(value):
    """Returns `value` modulo 2^64 as a signed 64-bit number."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def unzigzag(value):
    return value >> 1 if value & 1 == 0 else -(value >> 1) - 1


def varint(data, at):
    value = 0
    for shift in range(0, 70, 7):
        need(at < len(data), "a varint is cut short")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            need(value < 1 << 64, "a varint is too large")
            return value, at
    raise Malformed("a varint is too long")


def sqlite_varint(value):
    value %= 1 << 64
    if value >= 1 << 56:
        groups = [value >> 8 + 7 * n & 0x7F | 0x80 for n in range(7, -1, -1)]
        return bytes(groups) + bytes([value & 0xFF])
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))


class Streams:
    """The six streams, each read from front to end."""

    def __init__(self, form, at):
        lens = []
        for _ in range(5):
            length, at = varint(form, at)
            lens.append(length)
        self.streams = []
        for length in lens:
            need(at + length <= len(form), "a stream is cut short")
            self.streams.append(form[at : at + length])
            at += length
        self.streams.append(form[at:])
        self.at = [0] * 6

    def take(self, stream, count):
        start = self.at[stream]
        need(count >= 0 and start + count <= len(self.streams[stream]), "a stream ends too early")
        self.at[stream] += count
        return self.streams[stream][start : start + count]

    def terminated(self, stream):
        end = self.streams[stream].find(0, self.at[stream])
        need(end >= 0, "a string does not end")
        return self.take(stream, end + 1 - self.at[stream])[:-1]

    def byte(self):
        return self.take(CONTROL, 1)[0]

    def number(self):
        value, self.at[CONTROL] = varint(self.streams[CONTROL], self.at[CONTROL])
        return value

    def signed(self):
        return unzigzag(self.number())

    def finish(self):
        for stream, at in zip(self.streams, self.at):
            need(at == len(stream), "a stream is too long")

    # Sequences.

    def differences(self, count):
        values, value = [], 0
        for _ in range(count):
            value = wrap(value + self.signed())
            values.append(value)
        return values

    def residuals(self, count, planes):
        need(planes <= 8, "too many planes")
        values = [0] * count
        for plane in range(planes):
            for n, byte in enumerate(self.take(PLANES, count)):
                values[n] |= byte << 8 * plane
        return values

    def integers(self, count):
        if count < 4:
            return self.differences(count)
        mode = self.byte()
        form, planes = mode & 0xF0, mode & 0x0F
        if form == 0x00:
            base = self.signed()
            return [wrap(base + residual) for residual in self.residuals(count, planes)]
        if form == 0x10:
            values = [self.signed()]
            for residual in self.residuals(count - 1, planes):
                values.append(wrap(values[-1] + unzigzag(residual)))
            return values
        if form == 0x20:
            first, delta = self.signed(), self.signed()
            values = [first, wrap(first + delta)]
            for residual in self.residuals(count - 2, planes):
                delta = wrap(delta + unzigzag(residual))
                values.append(wrap(values[-1] + delta))
            return values
        need(mode == 0x30, "the form of a sequence is unknown")
        entry_count = self.number() + 1
        need(entry_count <= 256, "a dictionary is too long")
        entries = self.differences(entry_count)
        return [entry_of(entries, n) for n in self.take(SYMBOLS, count)]

    def strings(self, count, stream):
        if count == 0:
            return []
        mode = self.byte()
        if mode == 0:
            return [self.terminated(stream) for _ in range(count)]
        if mode == 1:
            return [self.take(stream, length) for length in self.integers(count)]
        if mode == 2:
            entry_count = self.number() + 1
            need(entry_count <= 256, "a dictionary is too long")
            entries = [self.terminated(stream) for _ in range(entry_count)]
            return [entry_of(entries, n) for n in self.take(SYMBOLS, count)]
        if mode == 3:
            strings, string = [], b""
            for shared in self.take(SYMBOLS, count):
                need(shared <= len(string), "a prefix is too long")
                string = string[:shared] + self.terminated(stream)
                strings.append(string)
            return strings
        need(mode == 4, "the mode of strings is unknown")
        return self.dated(count, stream)

    def dated(self, count, stream):
        strings = [self.terminated(stream) for _ in range(count)]
        # By marker, and whether it is the first of its kind in its string.
        counts = {(marker, first): 0 for marker in range(1, 6) for first in (True, False)}
        for string in strings:
            need(6 not in string and 7 not in string, "a string has an unknown marker")
            for marker in range(1, 6):
                found = string.count(marker)
                counts[marker, True] += found > 0
                counts[marker, False] += max(found - 1, 0)
        dates = {key: iter(self.integers(n)) for key, n in counts.items()}
        out = []
        for string in strings:
            seen, whole = set(), bytearray()
            for byte in string:
                if 1 <= byte <= 5:
                    whole += date(byte, next(dates[byte, byte not in seen]))
                    seen.add(byte)
                else:
                    whole.append(byte)
            out.append(bytes(whole))
        return out


def entry_of(entries, number):
    need(number < len(entries), "a dictionary entry does not exist")
    return entries[number]


def date(marker, number):
    """Formats a date in one of the five notations. (Python's own calendar begins with the year 1.)"""
    day, second = (number, 0) if marker == 1 else divmod(number, 86400)
    need(-719528 <= day <= 2932896, "a date is outside the years 0 to 9999")
    day += 719528  # since 0000-01-01
    era, day = divmod(day, 146097)
    year = 400 * era
    while day >= (length := 366 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 365):
        day -= length
        year += 1
    is_leap = length == 366
    for month, length in enumerate([31, 28 + is_leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], 1):
        if day < length:
            break
        day -= length
    day += 1
    time = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    name = MONTHS[month - 1]
    text = {
        1: f"{year:04}-{month:02}-{day:02}",
        2: f"{year:04}-{month:02}-{day:02} {time}",
        3: f"{year:04}-{month:02}-{day:02}T{time}",
        4: f"{day:02}/{name}/{year:04}:{time}",
        5: f"{name} {day:2} {time}",
    }
    return text[marker].encode()


def int_serial(value):
    if value in (0, 1):
        return 8 + value
    for serial, bits in enumerate((8, 16, 24, 32, 48), 1):
        if -1 << bits - 1 <= value < 1 << bits - 1:
            return serial
    return 6


def int_field(serial, value):
    return serial, (value % (1 << 8 * BODY_LEN[serial])).to_bytes(BODY_LEN[serial], "big")


def body_len(serial):
    need(serial not in (10, 11), "a serial type is reserved")
    return BODY_LEN[serial] if serial < 10 else (serial - 12) // 2


class Group:
    """Pages that seem to belong to one b-tree: rows of fields. A field is (serial type, body); the
    body is None if the field is cut, and the whole field is None if it is absent."""

    def __init__(self, streams, cell_counts, usable, fields_left):
        self.usable = usable
        self.type = streams.byte()
        need(self.type in (2, 5, 10, 13), "the type of a group is unknown")
        column_count = streams.number()
        count = sum(cell_counts)
        need(column_count <= 2000 and column_count * count <= fields_left, "there are too many fields")
        self.field_count = column_count * count
        self.row_ids = streams.integers(count) if self.type in (TABLE_INTERIOR, TABLE_LEAF) else None
        self.children = None
        if self.type in (INDEX_INTERIOR, TABLE_INTERIOR):
            self.children = iter(streams.integers(count + len(cell_counts)))
        columns = [column(streams, count) for _ in range(column_count)]
        self.rows = [[c[n] for c in columns] for n in range(count)]
        self.overflow = {}
        if self.type != TABLE_INTERIOR:
            numbers = streams.integers(streams.number())
            need(numbers == sorted(set(numbers)), "row numbers do not ascend")
            need(not numbers or 0 <= numbers[0] and numbers[-1] < count, "a row does not exist")
            tails = []
            for n in numbers:
                header, bodies, payload_len = self.record(n)
                tails.append(streams.take(BYTES, self.local_len(payload_len) - len(header) - len(bodies)))
            pages = streams.integers(len(numbers))
            self.overflow = {n: (tail, page) for n, tail, page in zip(numbers, tails, pages)}
        self.next = 0

    def record(self, n):
        """Returns the header of a row's record, the bodies whole in its cell, and the payload length."""
        fields = [field for field in self.rows[n] if field is not None]
        types = b"".join(sqlite_varint(serial) for serial, _ in fields)
        header_len = len(types) + 1
        while len(sqlite_varint(header_len)) + len(types) != header_len:
            header_len += 1
        bodies = b"".join(body for _, body in fields if body is not None)
        payload_len = header_len + sum(body_len(serial) for serial, _ in fields)
        return sqlite_varint(header_len) + types, bodies, payload_len

    def local_len(self, payload_len):
        """Returns how much of a payload is in its cell: https://www.sqlite.org/fileformat2.html#b_tree_pages"""
        u = self.usable
        most = u - 35 if self.type == TABLE_LEAF else (u - 12) * 64 // 255 - 23
        if payload_len <= most:
            return payload_len
        least = (u - 12) * 32 // 255 - 23
        local = least + (payload_len - least) % (u - 4)
        return local if local <= most else least

    def next_cell(self):
        n, self.next = self.next, self.next + 1
        child = b"" if self.children is None else struct.pack(">I", next(self.children) % (1 << 32))
        row_id = b"" if self.row_ids is None else sqlite_varint(self.row_ids[n])
        if self.type == TABLE_INTERIOR:
            return child + row_id
        header, bodies, payload_len = self.record(n)
        cell = child + sqlite_varint(payload_len) + row_id + header + bodies
        need((n in self.overflow) == (self.local_len(payload_len) < payload_len), "the length of a payload is wrong")
        if n in self.overflow:
            tail, page = self.overflow[n]
            cell += tail + struct.pack(">I", page % (1 << 32))
        return cell


def column(streams, count):
    if count == 0:
        return []
    first = streams.byte()
    need(first == 0 or first >= 0x80, "a class is unknown")
    classes = streams.take(SYMBOLS, count) if first == 0 else bytes([first & 0x7F]) * count
    need(all(c <= 14 and c != WIDE for c in classes), "a class is unknown")
    ints = iter(streams.integers(sum(c == INT or c > WIDE for c in classes)))
    decimals = []
    if DECIMAL in classes:
        exponent = streams.byte()
        need(exponent <= 15, "a power of ten is too large")
        decimals = [d / 10.0**exponent for d in map(float, streams.integers(classes.count(DECIMAL)))]
    decimals = iter(decimals)
    doubles = iter(streams.integers(classes.count(DOUBLE)))
    texts = iter(streams.strings(classes.count(TEXTS), TEXT))
    blobs = iter(streams.strings(classes.count(BLOBS), BYTES))
    cuts = iter(streams.integers(classes.count(CUT)))

    def field(c):
        if c == NULL:
            return 0, b""
        if c == INT:
            value = next(ints)
            return int_field(int_serial(value), value)
        if c > WIDE:
            return int_field(c - WIDE, next(ints))
        if c == DECIMAL:
            return 7, struct.pack(">d", next(decimals))
        if c == DOUBLE:
            return int_field(7, next(doubles))
        if c == TEXTS:
            text = next(texts)
            return 2 * len(text) + 13, text
        if c == BLOBS:
            blob = next(blobs)
            return 2 * len(blob) + 12, blob
        if c == CUT:
            serial = next(cuts)
            need(0 <= serial < 1 << 31, "a serial type is too large")
            return serial, None
        return None

    return [field(c) for c in classes]


def decode(form, record_len):
    """Returns the record of `record_len` bytes whose filtered form is `form`."""
    need(len(form) >= 2 and len(form) <= 2 * record_len + 4096, "the form has an impossible length")
    need(9 <= form[0] <= 16, "the page length is invalid")
    page_len, usable = 1 << form[0], (1 << form[0]) - form[1]
    need(usable >= 480, "a page reserves too many bytes")
    head_len, at = varint(form, 2)
    first_page, at = varint(form, at)
    need(head_len < page_len and head_len <= record_len, "the first page starts too late")
    streams = Streams(form, at)
    page_count = (record_len - head_len) // page_len
    out = bytearray(streams.take(REST, head_len))

    kinds = streams.integers(page_count)
    need(all(0 <= kind < FIRST_GROUP + 256 for kind in kinds), "the kind of a page is unknown")
    btrees = [kind - FIRST_GROUP for kind in kinds if kind >= FIRST_GROUP]
    words = iter(streams.integers(kinds.count(KEPT)))
    counts = streams.integers(len(btrees))
    flags = streams.integers(len(btrees))
    need(all(0 <= count <= page_len // 2 for count in counts), "a page has too many cells")
    need(all(0 <= flag <= 15 for flag in flags), "a flag is unknown")
    header_count = sum(flag & HEADER != 0 for flag in flags)
    freeblocks = iter(streams.integers(header_count))
    starts = iter(streams.integers(header_count))
    fragments = iter(streams.integers(header_count))
    ranks = iter(streams.integers(sum(count for count, flag in zip(counts, flags) if flag & RANKS)))
    holes = iter(streams.integers(sum(count for count, flag in zip(counts, flags) if flag & HOLES)))
    groups, fields_left = [], record_len
    for g in range(max(btrees, default=-1) + 1):
        of_group = [count for count, group in zip(counts, btrees) if group == g]
        groups.append(Group(streams, of_group, usable, fields_left))
        fields_left -= groups[-1].field_count

    pages = iter(zip(counts, flags))
    for number, kind in enumerate(kinds, first_page):
        if kind == ZERO:
            out += bytes(page_len)
        elif kind == KEPT:
            out += struct.pack(">I", (next(words) + number) % (1 << 32)) + streams.take(REST, page_len - 4)
        else:
            count, flag = next(pages)
            group = groups[kind - FIRST_GROUP]
            page, covered = bytearray(page_len), bytearray(page_len)
            front = 100 if number == 1 else 0
            page[:front] = streams.take(REST, front)
            cells = [group.next_cell() for _ in range(count)]
            order = list(range(count))
            if flag & RANKS:
                rank_of = [next(ranks) for _ in range(count)]
                need(sorted(rank_of) == order, "the ranks of cells are not an order")
                order.sort(key=rank_of.__getitem__)
            end, places = usable, [0] * count
            for n in order:
                end -= (next(holes) if flag & HOLES else 0) + max(len(cells[n]), 4)
                need(0 <= end <= usable, "the cells do not fit in their page")
                places[n] = end
                page[end : end + len(cells[n])] = cells[n]
                covered[end : end + len(cells[n])] = b"\1" * len(cells[n])
            has_child = group.children is not None
            pointers = front + (12 if has_child else 8)
            need(end >= pointers + 2 * count, "the cells do not fit in their page")
            extra = (next(freeblocks), next(starts), next(fragments)) if flag & HEADER else (0, 0, 0)
            header = (group.type, extra[0] % (1 << 16), count, (end + extra[1]) % (1 << 16), extra[2] % 256)
            page[front : front + 8] = struct.pack(">BHHHB", *header)
            if has_child:
                page[front + 8 : front + 12] = struct.pack(">I", next(group.children) % (1 << 32))
            for n, place in enumerate(places):
                page[pointers + 2 * n : pointers + 2 * n + 2] = struct.pack(">H", place % (1 << 16))
            if flag & LEFTOVER:
                free = [at for at in range(pointers + 2 * count, page_len) if not covered[at]]
                for at, byte in zip(free, streams.take(REST, len(free))):
                    page[at] = byte
            out += page
    out += streams.take(REST, record_len - len(out))
    streams.finish()
    return bytes(out)
