//! Doubles that came from decimals.
//!
//! A coordinate of `35.6762` takes eight bytes as a double, most of which look random. It is also
//! `356762 / 10^4`: that division, rounded as IEEE 754 demands, gives the very same double on every machine, as
//! long as both numbers are exact (below 2^53 and 10^22). So a column of such doubles is kept
//! as the integers, with one power for all. Each double is tried; those it does not work for are kept.

/// The greatest power tried.
pub(super) const EXPONENT_MAX: usize = 15;

/// How many doubles are looked at to choose the power.
const SAMPLE_COUNT: usize = 32;

/// How many of a hundred decimals the power must suit: one longer number must not lengthen all.
const SUITED_PERCENT_MIN: usize = 90;

/// Integers up to this are exact as doubles.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

const POWERS: [f64; EXPONENT_MAX + 1] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// The integer that divided by the power gives exactly the double of these bits.
#[inline]
pub(super) fn to_decimal(bits: u64, exponent: usize) -> Option<i64> {
    let value = f64::from_bits(bits);
    let scaled = (value * POWERS[exponent]).round();
    // Not for NaN either. Negative zero has no integer.
    let decimal = scaled as i64;
    (scaled.abs() < EXACT_MAX && from_decimal(decimal, exponent) == bits).then_some(decimal)
}

/// The bits of the double.
#[inline]
pub(super) fn from_decimal(decimal: i64, exponent: usize) -> u64 {
    (decimal as f64 / POWERS[exponent]).to_bits()
}

/// The power that suits most of a sample of `doubles`, if it suits half of them.
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
