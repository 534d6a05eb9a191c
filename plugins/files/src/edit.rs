//! Replacing one text by another so that a second run changes nothing.

use std::fmt;

/// What an edit does to a file's text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The text afterwards.
    Made(String),
    /// An earlier run of the same call made it.
    AlreadyMade,
}

/// Why an edit is not made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The old text is empty.
    Empty,
    /// Old and new text are the same.
    Same,
    /// The old text is not there.
    NotFound,
    /// It is there so many times.
    NotUnique(usize),
    /// It could not be told afterwards whether the edit was made.
    Ambiguous,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the old text is empty"),
            Self::Same => f.write_str("old and new text are the same"),
            Self::NotFound => f.write_str("the old text is not in it"),
            Self::NotUnique(count) => write!(
                f,
                "the old text is in it {count} times; take more of what surrounds it"
            ),
            Self::Ambiguous => f.write_str(
                "the old text would still be in it, or the new text already surrounds it; take \
                 more of what surrounds it",
            ),
        }
    }
}

/// Replaces `old`, which stands in `text` exactly once, by `new`. `again` says that an earlier run may
/// have made the edit already.
pub(crate) fn apply(text: &str, old: &str, new: &str, again: bool) -> Result<Outcome, Refusal> {
    if old.is_empty() {
        return Err(Refusal::Empty);
    }
    if old == new {
        return Err(Refusal::Same);
    }
    if again && looks_made(text, old, new) {
        return Ok(Outcome::AlreadyMade);
    }
    let places = places(text, old);
    let &[at] = places.as_slice() else {
        return Err(match places.len() {
            0 => Refusal::NotFound,
            count => Refusal::NotUnique(count),
        });
    };
    let after = format!("{}{new}{}", &text[..at], &text[at + old.len()..]);
    // Another run must be able to tell: what is made looks made, and what is not made does not.
    if !looks_made(&after, old, new) || looks_made(text, old, new) {
        return Err(Refusal::Ambiguous);
    }
    Ok(Outcome::Made(after))
}

/// Whether the new text is there and the old one nowhere but within it.
fn looks_made(text: &str, old: &str, new: &str) -> bool {
    let new_places = if new.is_empty() {
        Vec::new()
    } else {
        places(text, new)
    };
    if !new.is_empty() && new_places.is_empty() {
        return false;
    }
    places(text, old).iter().all(|&at| {
        new_places
            .iter()
            .any(|&start| start <= at && at + old.len() <= start + new.len())
    })
}

/// Where `part` stands in `text`, overlapping places included.
fn places(text: &str, part: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(part) {
        let at = from + at;
        found.push(at);
        from = at + text[at..].chars().next().map_or(1, char::len_utf8);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str, old: &str, new: &str) -> String {
        match apply(text, old, new, false) {
            Ok(Outcome::Made(after)) => after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn replaces_the_only_place() {
        assert_eq!(made("a b c", "b", "x"), "a x c");
        assert_eq!(made("a b c", " b", ""), "a c");
        assert_eq!(made("äöü", "ö", "oe"), "äoeü");
    }

    #[test]
    fn refuses_what_is_not_there_once() {
        assert_eq!(apply("a", "b", "c", false), Err(Refusal::NotFound));
        assert_eq!(apply("aaa", "aa", "c", false), Err(Refusal::NotUnique(2)));
        assert_eq!(apply("a", "", "c", false), Err(Refusal::Empty));
        assert_eq!(apply("a", "a", "a", false), Err(Refusal::Same));
    }

    #[test]
    fn a_made_edit_is_recognised() {
        for (text, old, new) in [
            ("a b c", "b", "x"),
            ("a b c", "b", "b b"),
            ("a b c", "b", "abc"),
            ("a b c", "b ", ""),
        ] {
            let after = match apply(text, old, new, true) {
                // Without any new text, "not there" is all that a second run can see.
                Ok(Outcome::Made(after)) => after,
                other => panic!("{text} {old} {new}: {other:?}"),
            };
            assert_eq!(
                apply(&after, old, new, true),
                Ok(Outcome::AlreadyMade),
                "{text} {old} {new}"
            );
        }
    }

    #[test]
    fn refuses_what_no_second_run_could_tell() {
        // The cut would bring the old text about again.
        assert_eq!(apply("aabb", "ab", "", false), Err(Refusal::Ambiguous));
        // The new text is around the old one before the edit.
        assert_eq!(apply("a b", "a", "a b", false), Err(Refusal::Ambiguous));
    }
}
