//! Notations of dates and times: finds them in texts, and writes them from numbers.
//!
//! Only dates that exist and are in canonical form are found, so that writing them restores the
//! exact bytes.

use super::civil::{self, Date};

pub(super) const SECONDS_PER_DAY: i64 = 86_400;
pub(super) const SECOND_MIN: i64 = civil::DAY_MIN * SECONDS_PER_DAY;
pub(super) const SECOND_MAX: i64 = (civil::DAY_MAX + 1) * SECONDS_PER_DAY - 1;

/// The markers: `YYYY-MM-DD`, with ` HH:MM:SS`, with `THH:MM:SS`, `DD/Mon/YYYY:HH:MM:SS`, `Mon DD
/// HH:MM:SS`.
pub(super) const DAY: u8 = 1;
pub(super) const SECOND_SPACE: u8 = 2;
const SECOND_T: u8 = 3;
const SECOND_SLASH: u8 = 4;
pub(super) const SECOND_NAMED: u8 = 5;
pub(super) const MARKER_MAX: u8 = 5;
/// Texts that contain other bytes up to this are left alone, so that the upper bits identify
/// markers.
pub(super) const RESERVED_MAX: u8 = 7;

/// The year of dates written without one; it has a leap day.
const YEAR_OF_NONE: u32 = 1972;

/// The longest notation, in bytes.
pub(super) const LEN_MAX: usize = 20;

/// The number of bytes searched at once: a vector, and the three bytes that its last ones are
/// compared with.
const BLOCK_LEN: usize = 35;

const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

/// A date in a text.
pub(super) struct Found {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) marker: u8,
    pub(super) value: i64,
}

/// Finds the first date from `from` on.
pub(super) fn find(bytes: &[u8], from: usize) -> Option<Found> {
    let mut at = from + 4;
    loop {
        let block = bytes.get(at..)?;
        // Most blocks have no mark, and this checks a whole block at once.
        if let Some(block) = block.first_chunk::<BLOCK_LEN>()
            && !has_mark(block)
        {
            at += BLOCK_LEN - 3;
            continue;
        }
        for (i, four) in block.windows(4).take(BLOCK_LEN - 3).enumerate() {
            if is_mark(four[0], four[3])
                && let Some(found) = find_around(bytes, at + i, four[0])
                && found.at >= from
            {
                return Some(found);
            }
        }
        if block.len() < BLOCK_LEN {
            return None;
        }
        at += BLOCK_LEN - 3;
    }
}

#[inline(always)]
fn has_mark(block: &[u8; BLOCK_LEN]) -> bool {
    let pairs = block[..BLOCK_LEN - 3].iter().zip(&block[3..]);
    pairs.fold(0, |any, (&byte, &third)| any | u8::from(is_mark(byte, third))) != 0
}

/// Whether two bytes, three apart, are equal separators, as all notations have around two digits.
#[inline(always)]
fn is_mark(byte: u8, third: u8) -> bool {
    (byte == third) & ((byte == b'-') | (byte == b':'))
}

/// Finds the date whose first such separator is at `at`.
fn find_around(bytes: &[u8], at: usize, mark: u8) -> Option<Found> {
    if mark == b'-' {
        return find_numeric(bytes, at - 4);
    }
    let slash = at.checked_sub(14).and_then(|start| find_slash(bytes, start));
    slash.or_else(|| at.checked_sub(9).and_then(|start| find_named(bytes, start)))
}

fn find_numeric(bytes: &[u8], at: usize) -> Option<Found> {
    let rest = &bytes[at..];
    let value = take_day(rest.first_chunk()?)?;
    let marker = match rest.get(10) {
        Some(b' ') => SECOND_SPACE,
        Some(b'T') => SECOND_T,
        _ => return Some(Found { at, len: 10, marker: DAY, value }),
    };
    match rest[11..].first_chunk().and_then(take_second) {
        Some(second) => {
            Some(Found { at, len: 19, marker, value: value * SECONDS_PER_DAY + second })
        }
        None => Some(Found { at, len: 10, marker: DAY, value }),
    }
}

fn find_slash(bytes: &[u8], at: usize) -> Option<Found> {
    let date: &[u8; 20] = bytes[at..].first_chunk()?;
    let &[a, b, b'/', _, _, _, b'/', c, d, e, f, b':', ..] = date else { return None };
    let year = two_digits(c, d)? * 100 + two_digits(e, f)?;
    let month = take_month(&date[3..6])?;
    let day = civil::day_of(Date { year, month, day: two_digits(a, b)? })?;
    let second = take_second(date[12..].first_chunk()?)?;
    Some(Found { at, len: 20, marker: SECOND_SLASH, value: day * SECONDS_PER_DAY + second })
}

fn find_named(bytes: &[u8], at: usize) -> Option<Found> {
    let date: &[u8; 15] = bytes[at..].first_chunk()?;
    let &[_, _, _, b' ', a, b, b' ', ..] = date else { return None };
    let day = match a {
        b' ' => two_digits(b'0', b)?,
        b'0' => return None,
        _ => two_digits(a, b)?,
    };
    let day = civil::day_of(Date { year: YEAR_OF_NONE, month: take_month(&date[..3])?, day })?;
    let second = take_second(date[7..].first_chunk()?)?;
    Some(Found { at, len: 15, marker: SECOND_NAMED, value: day * SECONDS_PER_DAY + second })
}

fn take_month(name: &[u8]) -> Option<u32> {
    MONTHS.chunks(3).position(|month| month == name).map(|month| month as u32 + 1)
}

/// Parses `YYYY-MM-DD` into a day number.
fn take_day(bytes: &[u8; 10]) -> Option<i64> {
    let &[a, b, c, d, b'-', e, f, b'-', g, h] = bytes else { return None };
    let year = two_digits(a, b)? * 100 + two_digits(c, d)?;
    civil::day_of(Date { year, month: two_digits(e, f)?, day: two_digits(g, h)? })
}

/// Parses `HH:MM:SS` into a second of the day.
fn take_second(bytes: &[u8; 8]) -> Option<i64> {
    let &[a, b, b':', c, d, b':', e, f] = bytes else { return None };
    let (hour, minute, second) = (two_digits(a, b)?, two_digits(c, d)?, two_digits(e, f)?);
    (hour < 24 && minute < 60 && second < 60).then(|| i64::from(hour * 3600 + minute * 60 + second))
}

fn two_digits(high: u8, low: u8) -> Option<u32> {
    let is_two = high.is_ascii_digit() && low.is_ascii_digit();
    is_two.then(|| u32::from(high - b'0') * 10 + u32::from(low - b'0'))
}

/// The last day that was written. Most dates have the day of the date before.
pub(super) struct Day {
    number: i64,
    date: Date,
}

impl Default for Day {
    fn default() -> Day {
        Day { number: 0, date: civil::date_of(0) }
    }
}

impl Day {
    fn date_of(&mut self, number: i64) -> Date {
        if self.number != number {
            *self = Day { number, date: civil::date_of(number) };
        }
        self.date
    }
}

/// Writes the date of a marker to the front of `room` and returns its length; `None` if the value
/// is out of range.
pub(super) fn write(
    marker: u8,
    value: i64,
    last: &mut Day,
    room: &mut [u8; LEN_MAX],
) -> Option<usize> {
    if marker == DAY {
        (civil::DAY_MIN..=civil::DAY_MAX).contains(&value).then_some(())?;
        put_day(last.date_of(value), room);
        return Some(10);
    }
    (SECOND_MIN..=SECOND_MAX).contains(&value).then_some(())?;
    let day_number = value.div_euclid(SECONDS_PER_DAY);
    let second = value.rem_euclid(SECONDS_PER_DAY) as u32;
    let date = last.date_of(day_number);
    let Date { year, month, day } = date;
    let month_name = &MONTHS[3 * (month as usize - 1)..][..3];
    match marker {
        SECOND_SLASH => {
            *room = *b"00/Jan/0000:00:00:00";
            put_two(day, room, 0);
            room[3..6].copy_from_slice(month_name);
            put_two(year / 100, room, 7);
            put_two(year % 100, room, 9);
            put_second(second, &mut room[12..]);
            Some(20)
        }
        SECOND_NAMED => {
            room[..7].copy_from_slice(b"Jan 00 ");
            room[..3].copy_from_slice(month_name);
            put_two(day, room, 4);
            if day < 10 {
                room[4] = b' ';
            }
            put_second(second, &mut room[7..]);
            Some(15)
        }
        _ => {
            put_day(date, room);
            room[10] = if marker == SECOND_T { b'T' } else { b' ' };
            put_second(second, &mut room[11..]);
            Some(19)
        }
    }
}

fn put_day(Date { year, month, day }: Date, room: &mut [u8; LEN_MAX]) {
    put_two(year / 100, room, 0);
    put_two(year % 100, room, 2);
    room[4] = b'-';
    put_two(month, room, 5);
    room[7] = b'-';
    put_two(day, room, 8);
}

fn put_second(second: u32, room: &mut [u8]) {
    put_two(second / 3600, room, 0);
    room[2] = b':';
    put_two(second / 60 % 60, room, 3);
    room[5] = b':';
    put_two(second % 60, room, 6);
}

#[inline(always)]
fn put_two(value: u32, room: &mut [u8], at: usize) {
    room[at] = b'0' + (value / 10) as u8;
    room[at + 1] = b'0' + (value % 10) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_looks_like_a_date_is_left_alone() {
        for text in [
            "2023-02-29",
            "1900-02-29 00:00:00",
            "30/Feb/2024:00:00:00",
            "01/may/2024:00:00:00",
            "Feb 30 00:00:00",
            "Feb 05 00:00:00",
            "May  1 24:00:00",
            "May  0 00:00:00",
            "2023-1-01 00:00:00",
            "::::::::----------",
        ] {
            for pad in 0..80 {
                let padded = format!("{}{text}", " ".repeat(pad));
                assert!(find(padded.as_bytes(), 0).is_none(), "{padded}");
            }
        }
    }

    #[test]
    fn a_date_is_found_wherever_it_stands() {
        for (text, len) in
            [("2024-02-29", 10), ("29/Feb/2024:23:59:59", 20), ("Feb 29 00:00:00", 15)]
        {
            for pad in 0..80 {
                let padded = format!("{}{text}{}", ":".repeat(pad), "-".repeat(pad % 40));
                let found = find(padded.as_bytes(), 0).expect("a date");
                assert_eq!((found.at, found.len), (pad, len), "{padded}");
                assert!(find(padded.as_bytes(), pad + 1).is_none());
            }
        }
    }
}
