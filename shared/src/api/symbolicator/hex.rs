//! Hexadecimal numbers: addresses, registers, ids of functions.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A 64-bit number, parsed from `"0x1f"`, `"31"` or `31`, and written as `"0x1f"`.
///
/// ```
/// use symdepot::api::symbolicator::Hex;
///
/// for json in [r#""0x1f""#, r#""0X1F""#, r#""31""#, "31"] {
///     assert_eq!(serde_json::from_str::<Hex>(json).unwrap(), Hex(31));
/// }
/// assert_eq!(serde_json::to_string(&Hex(31)).unwrap(), r#""0x1f""#);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hex(pub u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl FromStr for Hex {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None => (text, 10),
        };
        // `from_str_radix` accepts a plus sign, which is not a digit. A lone `+` makes it fail.
        let digits = if digits.starts_with('+') { "+" } else { digits };
        u64::from_str_radix(digits, radix).map(Hex)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HexVisitor;

        impl Visitor<'_> for HexVisitor {
            type Value = Hex;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 64-bit number, as \"0x…\" or in decimal")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Hex, E> {
                Ok(Hex(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Hex, E> {
                u64::try_from(value)
                    .map(Hex)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Hex, E> {
                text.parse().map_err(|_| {
                    let start = &text[..text.floor_char_boundary(32)];
                    E::invalid_value(Unexpected::Str(start), &self)
                })
            }
        }

        deserializer.deserialize_any(HexVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_not_a_64_bit_number_is_refused() {
        let check = |json: &str| assert!(serde_json::from_str::<Hex>(json).is_err(), "{json}");
        for json in [
            r#""""#,
            r#""0x""#,
            r#""+1""#,
            r#""0x+1""#,
            r#""-1""#,
            "-1",
            "1.5",
            "1e400",
            r#""ff""#,
            "null",
            "[]",
        ] {
            check(json);
        }
        check(r#""0x10000000000000000""#);
        check("18446744073709551616");
    }

    #[test]
    fn a_value_is_hexadecimal_or_decimal_text_or_a_number() {
        for json in [r#""0x1000""#, r#""0X1000""#, r#""4096""#, "4096"] {
            assert_eq!(
                serde_json::from_str::<Hex>(json).unwrap(),
                Hex(4096),
                "{json}"
            );
        }
    }

    #[test]
    fn the_largest_number_survives_the_round_trip() {
        let largest = Hex(u64::MAX);
        let json = serde_json::to_string(&largest).unwrap();
        assert_eq!(json, r#""0xffffffffffffffff""#);
        assert_eq!(serde_json::from_str::<Hex>(&json).unwrap(), largest);
        assert_eq!(
            serde_json::from_str::<Hex>("18446744073709551615").unwrap(),
            largest
        );
    }
}
