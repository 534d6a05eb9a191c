//! Values that TOML has no type for: amounts of money and times.

use std::time::Duration;

use serde::Deserialize;
use serde::de::Error as _;

/// An amount such as `2` or `0.15` US dollars, in millionths of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dollars(pub(super) u64);

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let amount = f64::deserialize(deserializer)?;
        let millionths = (amount * 1e6).round();
        // A store's numbers are of 63 bits.
        if !(0.0..9e18).contains(&millionths) {
            return Err(D::Error::custom(format!(
                "`{amount}` is no amount of US dollars: write `2` or `0.15`"
            )));
        }
        Ok(Self(millionths as u64))
    }
}

/// A time such as `500ms`, `30s` or `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        span(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!("`{text}` is no time: write `500ms`, `30s` or `5m`"))
        })
    }
}

/// A time such as `500ms`, `30s` or `5m`, if it is one.
pub(crate) fn span(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    let ms = match &text[unit..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(ms).map(Duration::from_millis)
}
