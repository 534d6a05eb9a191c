//! Where names lead, which every decision asks. They are kept as they were read, together with how often
//! names had changed by then. The answers to commits, renewals and scans tell how often they have changed
//! by now, so that a change that another process made is seen by the step after the next commit at the
//! latest, and nothing is asked for it as long as there is none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstay_core::port::Alias;

#[derive(Default)]
pub(super) struct Names(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Changes that the database has told of.
    heard: i64,
    /// Changes of this process, made or attempted: what was read before one is not kept after it.
    own: u64,
    read: Option<(i64, Arc<[Alias]>)>,
}

/// A read that has begun.
#[derive(Clone, Copy)]
pub(super) struct Begun(u64);

impl Names {
    /// An answer told how often names have changed.
    pub(super) fn heard(&self, changes: i64) {
        let mut kept = self.kept();
        kept.heard = kept.heard.max(changes);
    }

    /// All names, unless they are known to be others by now.
    pub(super) fn get(&self) -> Option<Arc<[Alias]>> {
        let kept = self.kept();
        let (changes, names) = kept.read.as_ref()?;
        (*changes >= kept.heard).then(|| Arc::clone(names))
    }

    /// Before names are read.
    pub(super) fn begin(&self) -> Begun {
        Begun(self.kept().own)
    }

    /// Keeps what was read, as of so many changes.
    pub(super) fn keep(&self, begun: Begun, changes: i64, names: Arc<[Alias]>) {
        let mut kept = self.kept();
        kept.heard = kept.heard.max(changes);
        let newer = kept.read.as_ref().is_none_or(|read| read.0 <= changes);
        if kept.own == begun.0 && newer {
            kept.read = Some((changes, names));
        }
    }

    /// This process has changed a name, or may have.
    pub(super) fn changed(&self) {
        let mut kept = self.kept();
        kept.own += 1;
        kept.read = None;
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use mainstay_core::plugin::Kind;

    use super::*;

    fn names(digest: &str) -> Arc<[Alias]> {
        Arc::new([Alias {
            kind: Kind::Runner,
            alias: "loop".into(),
            digest: digest.into(),
            source: None,
        }])
    }

    #[test]
    fn what_has_changed_is_not_given() {
        let kept = Names::default();
        assert_eq!(kept.get(), None);
        kept.keep(kept.begin(), 3, names("a"));
        // Answers may come in any order.
        kept.heard(3);
        kept.heard(2);
        assert_eq!(kept.get(), Some(names("a")));
        kept.heard(4);
        assert_eq!(kept.get(), None);
        // Read before the change, and told of later.
        kept.keep(kept.begin(), 3, names("a"));
        assert_eq!(kept.get(), None);
        kept.keep(kept.begin(), 4, names("b"));
        kept.keep(kept.begin(), 3, names("a"));
        assert_eq!(kept.get(), Some(names("b")));
    }

    #[test]
    fn what_was_read_before_a_change_of_ones_own_is_not_kept() {
        let kept = Names::default();
        let begun = kept.begin();
        kept.changed();
        kept.keep(begun, 1, names("a"));
        assert_eq!(kept.get(), None);
        kept.keep(kept.begin(), 1, names("b"));
        assert_eq!(kept.get(), Some(names("b")));
        kept.changed();
        assert_eq!(kept.get(), None);
    }
}
