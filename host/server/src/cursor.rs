//! Opaque places in a list. A cursor names the list that it belongs to and carries a check sum, so
//! that a damaged one and one of another list are told apart from a place.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Kind, Problem};

const CHECK: usize = 8;

/// Writes a place in the list `resource`.
pub fn encode<P: Serialize>(resource: &str, place: &P) -> String {
    let json = serde_json::to_string(&(resource, place)).expect("places serialise");
    let check = &mainstay_core::id::digest(json.as_bytes())[..CHECK];
    URL_SAFE_NO_PAD.encode(format!("{check}{json}"))
}

/// Reads a place in the list `resource`.
///
/// # Errors
/// [`Kind::BadCursor`] for a damaged cursor and for one of another list.
pub fn decode<P: DeserializeOwned>(resource: &str, cursor: &str) -> Result<P, Problem> {
    let damaged = || {
        Problem::new(
            Kind::BadCursor,
            "The cursor is damaged. Use it exactly as it was given, or leave it out to begin at the first page.",
        )
    };
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| damaged())?;
    let text = String::from_utf8(bytes).map_err(|_| damaged())?;
    let (check, json) = text.split_at_checked(CHECK).ok_or_else(damaged)?;
    if check != &mainstay_core::id::digest(json.as_bytes())[..CHECK] {
        return Err(damaged());
    }
    let (of, place): (String, serde_json::Value) =
        serde_json::from_str(json).map_err(|_| damaged())?;
    if of != resource {
        return Err(Problem::new(
            Kind::BadCursor,
            format!(
                "The cursor belongs to the list `{of}` and not to `{resource}`. Leave it out to begin anew."
            ),
        ));
    }
    serde_json::from_value(place).map_err(|_| damaged())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_5_a_cursor_comes_back_as_it_was() {
        let cursor = encode("sessions", &(7_u64, "x"));
        assert_eq!(
            decode::<(u64, String)>("sessions", &cursor),
            Ok((7, "x".into()))
        );
    }

    #[test]
    fn api_5_a_damaged_cursor_is_refused_wherever_it_is_damaged() {
        let cursor = encode("sessions", &7_u64);
        for at in 0..cursor.len() {
            let mut damaged = cursor.clone().into_bytes();
            damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
            let damaged = String::from_utf8(damaged).expect("ascii");
            // Bits beyond the last byte are refused by the encoding.
            let read = decode::<u64>("sessions", &damaged);
            assert_eq!(
                read.map_err(|problem| problem.kind),
                Err(Kind::BadCursor),
                "at {at}"
            );
        }
        for cursor in ["", "x", "äö", "AAAA"] {
            assert!(decode::<u64>("sessions", cursor).is_err(), "{cursor:?}");
        }
    }

    #[test]
    fn api_5_a_cursor_of_another_resource_is_refused() {
        let cursor = encode("messages of a", &7_u64);
        let problem = decode::<u64>("messages of b", &cursor).expect_err("another list");
        assert_eq!(problem.kind, Kind::BadCursor);
        assert!(problem.detail.contains("messages of a"));
    }
}
