//! Kubernetes quantities ("10Gi", "1.5G", "1e3") as whole bytes.

use thiserror::Error;

/// Why a text is not a size in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// Nothing to read.
    #[error("the size is empty; write one such as 10Gi")]
    Empty,
    /// A size below zero.
    #[error("the size {0:?} is negative")]
    Negative(String),
    /// Not a number followed by a known suffix.
    #[error(
        "the size {0:?} is not a number with an optional suffix (Ki, Mi, Gi, Ti, Pi, Ei, n, u, m, k, M, G, T, P, E)"
    )]
    Malformed(String),
    /// More than 2^63-1 bytes, the most that the API server takes.
    #[error("the size {0:?} is more than {max} bytes", max = i64::MAX)]
    TooLarge(String),
}

/// Reads a quantity as bytes, rounding a fraction of a byte **up**, as Kubernetes' `Quantity.Value()` does
/// (apimachinery `pkg/api/resource`).
///
/// ```
/// # use volwright_provisioner::parse_bytes;
/// assert_eq!(parse_bytes("1Gi"), Ok(1 << 30));
/// assert_eq!(parse_bytes("1.5k"), Ok(1_500));
/// assert_eq!(parse_bytes("100m"), Ok(1));
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    let malformed = || QuantityError::Malformed(text.to_owned());
    let too_large = || QuantityError::TooLarge(text.to_owned());
    if text.is_empty() {
        return Err(QuantityError::Empty);
    }
    let (negative, unsigned) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(malformed());
    }
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    let scale = Scale::parse(suffix).ok_or_else(malformed)?;
    if whole.is_empty() && fraction.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(QuantityError::Negative(text.to_owned()));
    }
    // 19 digits hold i64::MAX; a longer whole part under a large negative exponent is not a size anybody means.
    if whole.len() > 38 {
        return Err(too_large());
    }
    // Below 10^-18 of the largest unit (2^60) a digit cannot change the result but by rounding up.
    let (kept, dropped) = fraction.split_at(fraction.len().min(18));
    let digits = format!("{whole}{kept}");
    let mut numerator: u128 = digits.parse().map_err(|_| too_large())?;
    if !dropped.is_empty() {
        numerator = numerator.checked_add(1).ok_or_else(too_large)?;
    }
    let decimals = i32::try_from(kept.len()).map_err(|_| malformed())?;
    let exponent = scale.power_of_ten - decimals;
    numerator = numerator.checked_mul(scale.factor).ok_or_else(too_large)?;
    let bytes = if exponent >= 0 {
        let factor = 10u128.checked_pow(exponent.unsigned_abs()).ok_or_else(too_large)?;
        numerator.checked_mul(factor).ok_or_else(too_large)?
    } else {
        // A divisor beyond u128 is larger than any numerator: what is left rounds up to one byte.
        10u128.checked_pow(exponent.unsigned_abs()).map_or(1, |divisor| numerator.div_ceil(divisor))
    };
    u64::try_from(bytes).ok().filter(|b| *b <= i64::MAX.unsigned_abs()).ok_or_else(too_large)
}

/// Writes bytes as the shortest exact quantity: binary suffix where it divides, else plain digits.
/// `parse_bytes(&format_bytes(n)) == Ok(n)` for every size that the API server takes.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(u32, &str); 6] = [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    for (shift, unit) in UNITS {
        let step = 1u64 << shift;
        if bytes >= step && bytes.is_multiple_of(step) {
            return format!("{}{unit}", bytes / step);
        }
    }
    bytes.to_string()
}

struct Scale {
    factor: u128,
    power_of_ten: i32,
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        let binary = |shift: u32| Some(Self { factor: 1 << shift, power_of_ten: 0 });
        let decimal = |power_of_ten: i32| Some(Self { factor: 1, power_of_ten });
        match suffix {
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "" => decimal(0),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                let exponent: i32 = exponent.parse().ok()?;
                // Kubernetes itself caps the exponent; beyond this no digit could matter.
                (-64..=64).contains(&exponent).then_some(Self { factor: 1, power_of_ten: exponent })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_the_api_server_reads_them() {
        let cases = [
            ("0", Ok(0)),
            ("1", Ok(1)),
            ("+5", Ok(5)),
            ("1Ki", Ok(1024)),
            ("1k", Ok(1000)),
            ("1.5Gi", Ok(1_610_612_736)),
            ("0.1", Ok(1)),
            ("100m", Ok(1)),
            ("1001m", Ok(2)),
            ("1e3", Ok(1000)),
            ("1E3", Ok(1000)),
            ("1E", Ok(1_000_000_000_000_000_000)),
            ("12e-1", Ok(2)),
            (".5Ki", Ok(512)),
            ("5.", Ok(5)),
            ("1n", Ok(1)),
            ("7Ei", Ok(7 << 60)),
            ("8Ei", Err(QuantityError::TooLarge("8Ei".into()))),
            ("", Err(QuantityError::Empty)),
            ("-1", Err(QuantityError::Negative("-1".into()))),
            ("-0", Ok(0)),
            ("1K", Err(QuantityError::Malformed("1K".into()))),
            ("1.2.3", Err(QuantityError::Malformed("1.2.3".into()))),
            ("Gi", Err(QuantityError::Malformed("Gi".into()))),
            ("1 Gi", Err(QuantityError::Malformed("1 Gi".into()))),
            ("é", Err(QuantityError::Malformed("é".into()))),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_bytes(text), expected, "text: {text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bytes in 0..=i64::MAX.unsigned_abs()) {
            prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            prop_assert!(parse_bytes(&text).is_ok_and(|b| b <= i64::MAX.unsigned_abs()) || parse_bytes(&text).is_err());
        }

        #[test]
        fn agrees_with_an_independent_parser(number in 1u32..100_000, suffix in "(Ki|Mi|Gi|k|M|G|m)?") {
            let text = format!("{number}{suffix}");
            let oracle = kube_quantity::ParsedQuantity::try_from(text.as_str()).ok()
                .and_then(|q| q.to_bytes_f64());
            if let Some(oracle) = oracle {
                let ours = parse_bytes(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
                #[expect(clippy::cast_precision_loss, reason = "sizes of this test fit 53 bits")]
                let ours = ours as f64;
                prop_assert!((ours - oracle.ceil()).abs() < 1.0, "{text}: {ours} against {oracle}");
            }
        }
    }
}
