//! Sizes, written as the real server writes them: it parses them, and prints them in their shortest exact form.

/// The rule that the real server names when it cannot read one.
pub(super) const RULE: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// A number of billionths, and how it is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quantity {
    nanos: i128,
    style: Style,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Binary,
    Decimal,
    Exponent,
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Suffixes of 10^-9, 10^-6, and so on.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

const NANOS: i128 = 1_000_000_000;

impl Quantity {
    /// `None`: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
        let places = u32::try_from(fraction.len()).ok()?;
        let binary = BINARY.iter().position(|s| *s == suffix).filter(|power| *power > 0);
        let decimal = DECIMAL.iter().position(|s| *s == suffix);
        let (factor, style) = if let Some(power) = binary {
            (1024_i128.checked_pow(u32::try_from(power).ok()?)?.checked_mul(NANOS)?, Style::Binary)
        } else if let Some(power) = decimal {
            (1000_i128.checked_pow(u32::try_from(power).ok()?)?, Style::Decimal)
        } else {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            (10_i128.checked_pow(u32::try_from(exponent.checked_add(9)?).ok()?)?, Style::Exponent)
        };
        let divisor = 10_i128.checked_pow(places)?;
        let scaled = digits.checked_mul(factor)?;
        // What is smaller than a billionth counts as one.
        let nanos = scaled / divisor + i128::from(scaled % divisor != 0);
        Some(Self { nanos: if negative { -nanos } else { nanos }, style })
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// In whole units, rounded up.
    pub fn whole(self) -> i128 {
        self.nanos.div_euclid(NANOS) + i128::from(self.nanos.rem_euclid(NANOS) != 0)
    }

    /// The shortest exact form.
    pub fn canonical(self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        let whole = self.nanos % NANOS == 0;
        if self.style == Style::Binary && whole && self.nanos.abs() >= 1024 * NANOS {
            let (number, power) = reduced(self.nanos / NANOS, 1024, 0, BINARY.len() - 1);
            return format!("{number}{}", BINARY.get(power).unwrap_or(&""));
        }
        if self.style == Style::Exponent {
            let (number, power) = reduced(self.nanos, 1000, 0, usize::MAX);
            let exponent = i64::try_from(power).unwrap_or(0) * 3 - 9;
            return if exponent == 0 { number.to_string() } else { format!("{number}e{exponent}") };
        }
        let (number, power) = reduced(self.nanos, 1000, 0, DECIMAL.len() - 1);
        format!("{number}{}", DECIMAL.get(power).unwrap_or(&""))
    }
}

fn reduced(mut number: i128, base: i128, mut power: usize, most: usize) -> (i128, usize) {
    while power < most && number % base == 0 {
        number /= base;
        power += 1;
    }
    (number, power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_kept_in_their_shortest_form() {
        let cases = [
            ("1024Mi", Some("1Gi")),
            ("1500Mi", Some("1500Mi")),
            ("1.5Gi", Some("1536Mi")),
            ("1.1Gi", Some("1181116006400m")),
            ("0.5Ki", Some("512")),
            ("1000", Some("1k")),
            ("1073741824", Some("1073741824")),
            ("500000k", Some("500M")),
            ("10000000000m", Some("10M")),
            ("1.5", Some("1500m")),
            ("1e9", Some("1e9")),
            ("-1Gi", Some("-1Gi")),
            ("0Gi", Some("0")),
            ("lots", None),
            ("", None),
            ("1Xi", None),
        ];
        for (text, expected) in cases {
            let found = Quantity::parse(text).map(Quantity::canonical);
            assert_eq!(found.as_deref(), expected, "case: {text}");
        }
    }
}
