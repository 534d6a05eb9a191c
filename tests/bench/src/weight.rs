//! How large sessions are: their events against their transcripts.

use mainstay_core::history::Item;
use mainstay_core::id::SessionId;
use mainstay_core::port::Store;

/// Bytes of some sessions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weight {
    /// How many events.
    pub count: f64,
    /// Of event data.
    pub events: f64,
    /// Of text in the transcript.
    pub text: f64,
    /// Of the transcript's items as they are stored.
    pub items: f64,
}

/// Weighs sessions together.
///
/// # Panics
/// The store refuses.
pub async fn of(store: &dyn Store, sessions: &[SessionId]) -> Weight {
    let mut weight = Weight::default();
    for session in sessions {
        let dump = store.dump(*session).await.expect("a session's rows");
        weight.count += dump.events.len() as f64;
        for event in &dump.events {
            weight.events += event.data.to_string().len() as f64;
        }
        for item in &dump.items {
            weight.text += Item::text_bytes(item) as f64;
            let stored = serde_json::to_string(item).expect("an item serialises");
            weight.items += stored.len() as f64;
        }
    }
    weight
}
