//! Recovers decimals from doubles.
//!
//! A coordinate of `35.6762` takes eight bytes as a double, most of which look random. It is also
//! `356762 / 10^4`. IEEE 754 requires correct rounding, so this division gives exactly the same
//! double on every machine, as long as both numbers are exact (below 2^53 and 10^22). So a column
//! of such doubles is stored as integers with one common power of ten. Each double is tried; those
//! that do not come back are stored unchanged.

/// The greatest exponent tried.
pub(super) const EXPONENT_MAX: usize = 15;

/// The number of doubles sampled to choose the exponent.
const SAMPLE_COUNT: usize = 32;

/// The share of decimals that the exponent must suit, in percent: one longer number must not
/// lengthen all the others.
const SUITED_PERCENT_MIN: usize = 90;

/// Integers below this are exact as doubles.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

const POWERS: [f64; EXPONENT_MAX + 1] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// 1.5 * 2^52. A double below 2^51 that is added to this is rounded to an integer, which is then in
/// the low bits of the sum. The compiler can vectorise this, unlike a conversion.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// Numbers below this are rounded with [`ROUNDER`]. It rounds halves to even, and [`f64::round`]
/// away from zero; but so far below 2^53, neither neighbour of a half comes back.
const ROUNDED_MAX: f64 = 281_474_976_710_656.0;

/// Returns the integer that, divided by the power of ten, gives exactly the double with these bits.
#[inline]
pub(super) fn to_decimal(bits: u64, exponent: usize) -> Option<i64> {
    let (decimal, is_right) = to_short_decimal(bits, exponent);
    if is_right {
        return Some(decimal);
    }
    let scaled = f64::from_bits(bits) * POWERS[exponent];
    // NaN fails the comparisons.
    if scaled.abs() < ROUNDED_MAX {
        return None;
    }
    let scaled = scaled.round();
    let decimal = scaled as i64;
    (scaled.abs() < EXACT_MAX && from_decimal(decimal, exponent) == bits).then_some(decimal)
}

/// Like [`to_decimal`], but only for short decimals. Also returns whether the integer is right.
#[inline(always)]
pub(super) fn to_short_decimal(bits: u64, exponent: usize) -> (i64, bool) {
    let scaled = f64::from_bits(bits) * POWERS[exponent];
    let sum = scaled + ROUNDER;
    let decimal = sum.to_bits().wrapping_sub(ROUNDER.to_bits()) as i64;
    // The difference is the integer as a double. It is never negative zero.
    let back = (sum - ROUNDER) / POWERS[exponent];
    (decimal, (scaled.abs() < ROUNDED_MAX) & (back.to_bits() == bits))
}

/// Returns the bits of the double that the decimal stands for.
#[inline]
pub(super) fn from_decimal(decimal: i64, exponent: usize) -> u64 {
    (decimal as f64 / POWERS[exponent]).to_bits()
}

/// Chooses the exponent that suits most decimals of a sample, if at least half of the sample are
/// decimals.
pub(super) fn choose_exponent(doubles: &[u64]) -> Option<usize> {
    let stride = doubles.len().div_ceil(SAMPLE_COUNT).max(1);
    let mut counts = [0usize; EXPONENT_MAX + 1];
    let (mut found, mut sampled) = (0, 0);
    for &bits in doubles.iter().step_by(stride) {
        sampled += 1;
        if let Some(exponent) = (0..=EXPONENT_MAX).find(|&e| to_decimal(bits, e).is_some()) {
            counts[exponent] += 1;
            found += 1;
        }
    }
    if found == 0 || found * 2 < sampled {
        return None;
    }
    let mut suited = 0;
    (0..=EXPONENT_MAX).find(|&exponent| {
        suited += counts[exponent];
        suited * 100 >= found * SUITED_PERCENT_MIN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, without a shortcut.
    fn to_decimal_by_rounding(bits: u64, exponent: usize) -> Option<i64> {
        let scaled = (f64::from_bits(bits) * POWERS[exponent]).round();
        let decimal = scaled as i64;
        (scaled.abs() < EXACT_MAX && from_decimal(decimal, exponent) == bits).then_some(decimal)
    }

    #[test]
    fn the_shortcut_finds_the_decimals_that_rounding_finds() {
        let mut found = 0;
        let mut check = |value: f64| {
            for exponent in 0..=EXPONENT_MAX {
                for step in -2..=2 {
                    let bits = (value.to_bits() as i64).wrapping_add(step) as u64;
                    let expected = to_decimal_by_rounding(bits, exponent);
                    assert_eq!(to_decimal(bits, exponent), expected, "{value} {exponent} {step}");
                    found += usize::from(expected.is_some());
                }
            }
        };
        let mut state = 1u64;
        for i in 0..20_000u64 {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(i | 1);
            let integer = (state >> (8 + i % 48)) as f64;
            for divisor in [1.0, 2.0, POWERS[i as usize % POWERS.len()], -8.0] {
                check(integer / divisor);
            }
            check(f64::from_bits(state));
        }
        for bits in 0..64 {
            let power = (1u64 << bits) as f64;
            for value in [power, power + 0.5, power - 0.5, -power, -power - 0.5, 1.0 / power] {
                check(value);
            }
        }
        for value in [0.0, -0.0, f64::INFINITY, f64::NAN, f64::MAX, f64::MIN_POSITIVE, 0.5, -0.5] {
            check(value);
        }
        assert!(found > 100_000, "{found}");
    }
}
