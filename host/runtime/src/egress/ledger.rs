//! What uses of plugins have asked of the world since the process began, for the operator to hold
//! against what is granted.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use mainstay_core::access::{Requests, Used};
use mainstay_core::plugin::Kind;
use reqwest::Method;
use url::Url;

/// Methods and origins of one use that are told apart; guests choose them.
const TOLD: usize = 200;
/// Bytes of a refusal that are kept.
const REFUSAL: usize = 500;

/// The counts of a process.
pub(super) struct Ledger {
    since: u64,
    uses: Mutex<HashMap<(Kind, String), Used>>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            since: since.map_or(0, |since| since.as_millis() as u64),
            uses: Mutex::default(),
        }
    }

    /// A request was sent, or refused with these words.
    pub(super) fn request(
        &self,
        kind: Kind,
        alias: &str,
        method: &Method,
        url: &Url,
        refusal: Option<&str>,
    ) {
        let origin = url.origin().ascii_serialization();
        let mut uses = self.lock();
        let used = entry(&mut uses, kind, alias);
        let known = used
            .requests
            .iter()
            .position(|known| known.method == *method.as_str() && known.origin == origin);
        let requests = match known {
            Some(at) => &mut used.requests[at],
            None if used.requests.len() < TOLD => {
                used.requests.push(Requests {
                    method: method.as_str().to_owned(),
                    origin,
                    ..Requests::default()
                });
                used.requests.last_mut().expect("pushed above")
            }
            None => {
                used.others += 1;
                return;
            }
        };
        match refusal {
            None => requests.sent += 1,
            Some(words) => {
                requests.refused += 1;
                let cut = words.floor_char_boundary(REFUSAL);
                requests.refusal = Some(words[..cut].to_owned());
            }
        }
    }

    /// A secret was put into a request.
    pub(super) fn secret(&self, kind: Kind, alias: &str, name: &str) {
        let mut uses = self.lock();
        let used = entry(&mut uses, kind, alias);
        // Only names from a manifest come here, so they are few.
        *used.secrets.entry(name.to_owned()).or_default() += 1;
    }

    /// A call was given the workspace.
    pub(super) fn workspace(&self, kind: Kind, alias: &str) {
        entry(&mut self.lock(), kind, alias).workspace_calls += 1;
    }

    /// What was counted.
    pub(super) fn of(&self, kind: Kind, alias: &str) -> Used {
        let uses = self.lock();
        let used = uses.get(&(kind, alias.to_owned())).cloned();
        Used {
            since: self.since,
            ..used.unwrap_or_default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Kind, String), Used>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry<'u>(uses: &'u mut HashMap<(Kind, String), Used>, kind: Kind, alias: &str) -> &'u mut Used {
    uses.entry((kind, alias.to_owned())).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_without_end_are_counted_and_not_kept() {
        let ledger = Ledger::new();
        for n in 0..TOLD + 5 {
            let url = format!("https://h{n}.example/a?b").parse().unwrap();
            ledger.request(Kind::Toolbox, "web", &Method::GET, &url, None);
        }
        let url: Url = "https://h0.example/other".parse().unwrap();
        let long = "ä".repeat(REFUSAL);
        ledger.request(Kind::Toolbox, "web", &Method::GET, &url, Some(&long));
        let used = ledger.of(Kind::Toolbox, "web");
        assert_eq!((used.requests.len(), used.others), (TOLD, 5));
        let first = &used.requests[0];
        assert_eq!(
            (&*first.origin, first.sent, first.refused),
            ("https://h0.example", 1, 1)
        );
        assert!(first.refusal.as_ref().unwrap().len() <= REFUSAL);
        assert_eq!(ledger.of(Kind::Provider, "web").requests, []);
    }
}
