//! Converts dates of the proleptic Gregorian calendar, years 0 to 9999, to day numbers and back.
//!
//! The arithmetic is Howard Hinnant's, <https://howardhinnant.github.io/date_algorithms.html>:
//! years begin in March, so that the leap day is the last day of its year.

/// 0000-01-01, in days since 1970-01-01.
pub(super) const DAY_MIN: i64 = -719_528;
/// 9999-12-31, in days since 1970-01-01.
pub(super) const DAY_MAX: i64 = 2_932_896;

/// A date that may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    pub(super) year: u32,
    pub(super) month: u32,
    pub(super) day: u32,
}

/// The number of days since 1970-01-01; `None` for a date that does not exist.
pub(super) fn day_of(date: Date) -> Option<i64> {
    let Date { year, month, day } = date;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let day_max = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => return None,
    };
    if day == 0 || day > day_max || year > 9999 {
        return None;
    }
    let year = i64::from(year) - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = i64::from((153 * month_from_march + 2) / 5 + day - 1);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// The date of a day between [`DAY_MIN`] and [`DAY_MAX`].
pub(super) fn date_of(day: i64) -> Date {
    // Shifted by an era of 400 years, so that nothing is negative.
    let shifted = (day + 719_468 + 146_097) as u32;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = (month_from_march + 2) % 12 + 1;
    let year = (year_of_era + era * 400 + u32::from(month <= 2)).wrapping_sub(400);
    Date { year, month, day: day_of_year - (153 * month_from_march + 2) / 5 + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "three million days take hours there")]
    fn every_day_has_its_number() {
        let mut previous = Date { year: 0, month: 1, day: 0 };
        for day in DAY_MIN..=DAY_MAX {
            let date = date_of(day);
            assert_eq!(day_of(date), Some(day));
            let Date { year, month, day } = previous;
            let follows = date == Date { year, month, day: day + 1 }
                || date == Date { year, month: month + 1, day: 1 }
                || date == Date { year: year + 1, month: 1, day: 1 };
            assert!(follows, "{date:?} follows {previous:?}");
            previous = date;
        }
        assert_eq!(previous, Date { year: 9999, month: 12, day: 31 });
        assert_eq!(date_of(0), Date { year: 1970, month: 1, day: 1 });
    }

    #[test]
    fn dates_that_do_not_exist_have_none() {
        let is_date = |year, month, day| day_of(Date { year, month, day }).is_some();
        assert!(is_date(2000, 2, 29) && is_date(2024, 2, 29) && is_date(0, 2, 29));
        assert!(!is_date(1900, 2, 29) && !is_date(2023, 2, 29) && !is_date(2023, 2, 30));
        assert!(!is_date(2023, 4, 31) && !is_date(2023, 0, 1) && !is_date(2023, 13, 1));
        assert!(!is_date(2023, 1, 0) && !is_date(2023, 1, 32) && !is_date(10_000, 1, 1));
    }
}
