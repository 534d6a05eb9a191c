//! Carries live events between the nodes of a database, for as long as somebody watches: a node says
//! which sessions are watched at it, and whoever runs one of them tells it what happens, gathered for a
//! moment. All of it may be lost, and what is stored comes all the same.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::id::{Seq, SessionId};
use mainstay_core::live::{Live, Relay, Relayed, Watched};
use mainstay_core::node::Node;
use mainstay_store::PostgresStore;

/// How long live events are gathered before they are told.
const GATHERED: Duration = Duration::from_millis(100);
/// How often a node says again what is watched at it.
const AGAIN: Duration = Duration::from_secs(5);
/// Sessions that one message names.
const NAMED: usize = 128;
/// Characters of text in one message, which take at most six bytes each.
const CHARS: usize = 1_000;

/// Carries until the store is closed. Ends at once where nothing is relayed.
pub(crate) async fn run(store: Arc<PostgresStore>, node: Arc<Node>) {
    if !store.relays() {
        return;
    }
    let relay = node.relay();
    tokio::join!(
        ask(&store, &relay),
        tell(&store, &relay),
        hear(&store, &relay)
    );
}

async fn ask(store: &PostgresStore, relay: &Relay) {
    loop {
        let _ = tokio::time::timeout(AGAIN, relay.rung()).await;
        let watched = relay.watched();
        let some = |some: &[SessionId]| {
            let ids = some.iter().map(|session| format!(" {session}"));
            format!("want{}", ids.collect::<String>())
        };
        let messages: Vec<String> = watched.chunks(NAMED).map(some).collect();
        store.relay(&messages).await;
    }
}

async fn tell(store: &PostgresStore, relay: &Relay) {
    loop {
        relay.outgoing().await;
        tokio::time::sleep(GATHERED).await;
        let taken = relay.take();
        let messages: Vec<String> = taken
            .into_iter()
            .flat_map(pieces)
            .map(|it| write(&it))
            .collect();
        store.relay(&messages).await;
    }
}

async fn hear(store: &PostgresStore, relay: &Relay) {
    let mut messages = store.messages();
    while let Some(message) = messages.next().await {
        match read(&message) {
            Some(Message::Want(sessions)) => relay.wants(sessions),
            Some(Message::Live(relayed)) => relay.heard(relayed),
            // Of a later build.
            None => {}
        }
    }
}

/// What a message says.
#[derive(Debug, PartialEq)]
enum Message {
    Want(Vec<SessionId>),
    Live(Relayed),
}

/// One event as several, each short enough for a message.
fn pieces(relayed: Relayed) -> Vec<Relayed> {
    let Relayed { session, watched } = relayed;
    let mut event = watched.event;
    let text = match &mut event {
        Live::Text { text, .. } | Live::Reasoning { text, .. } | Live::Arguments { text, .. } => {
            text
        }
        Live::Progress { message, .. } => message,
        Live::Started { .. } => {
            let after = watched.after;
            return vec![Relayed {
                session,
                watched: Watched { event, after },
            }];
        }
    };
    let chars: Vec<char> = std::mem::take(text).chars().collect();
    let piece = |some: &[char]| {
        let mut event = event.clone();
        match &mut event {
            Live::Text { text, .. }
            | Live::Reasoning { text, .. }
            | Live::Arguments { text, .. } => {
                text.extend(some);
            }
            Live::Progress { message, .. } => message.extend(some),
            Live::Started { .. } => {}
        }
        let after = watched.after;
        Relayed {
            session,
            watched: Watched { event, after },
        }
    };
    chars.chunks(CHARS).map(piece).collect()
}

fn write(Relayed { session, watched }: &Relayed) -> String {
    let after = watched
        .after
        .map_or_else(|| "-".into(), |after| after.to_string());
    let event = serde_json::to_string(&watched.event).expect("live events serialise");
    format!("live {session} {after} {event}")
}

fn read(message: &str) -> Option<Message> {
    let (kind, rest) = message.split_once(' ')?;
    match kind {
        "want" => {
            let sessions = rest.split(' ').map(|id| id.parse().ok());
            sessions.collect::<Option<_>>().map(Message::Want)
        }
        "live" => {
            let (session, rest) = rest.split_once(' ')?;
            let (after, event) = rest.split_once(' ')?;
            let after: Option<Seq> = match after {
                "-" => None,
                seq => Some(seq.parse().ok()?),
            };
            let event = serde_json::from_str(event).ok()?;
            Some(Message::Live(Relayed {
                session: session.parse().ok()?,
                watched: Watched { event, after },
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard_and_fits_a_notification() {
        let session = SessionId::new();
        let text = "\u{1}\"ä🦀".repeat(1_000);
        let event = Live::Text {
            step: 3,
            text: text.clone(),
        };
        let told = pieces(Relayed {
            session,
            watched: Watched {
                event,
                after: Some(7),
            },
        });
        assert_eq!(told.len(), 4);
        let mut heard = String::new();
        for piece in &told {
            let message = write(piece);
            assert!(message.len() < 7_800, "{}", message.len());
            let Some(Message::Live(relayed)) = read(&message) else {
                panic!("{message}")
            };
            assert_eq!((relayed.session, relayed.watched.after), (session, Some(7)));
            let Live::Text { step: 3, text } = relayed.watched.event else {
                panic!("{message}")
            };
            heard.push_str(&text);
        }
        assert_eq!(heard, text);
        let started = Live::Started {
            step: 1,
            call: "c".into(),
            tool: "t".into(),
        };
        let started = Relayed {
            session,
            watched: Watched {
                event: started,
                after: None,
            },
        };
        let told = pieces(started.clone());
        assert_eq!(read(&write(&told[0])), Some(Message::Live(started)));
        assert_eq!(
            read(&format!("want {session}")),
            Some(Message::Want(vec![session]))
        );
        assert_eq!(read("later something"), None);
    }
}
