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

/// Returns the integer that, divided by the power of ten, gives exactly the double with these bits.
#[inline]
pub(super) fn to_decimal(bits: u64, exponent: usize) -> Option<i64> {
    let value = f64::from_bits(bits);
    let scaled = (value * POWERS[exponent]).round();
    // NaN and negative zero fail the comparisons.
    let decimal = scaled as i64;
    (scaled.abs() < EXACT_MAX && from_decimal(decimal, exponent) == bits).then_some(decimal)
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
