//! What other nodes wrote, as soon as they say so. Nothing is correct because of it: whoever needs to
//! know also polls. Each node gathers what it wrote and tells it at most once per interval, in a
//! statement of its own: a `NOTIFY` inside a commit would make all commits of the database wait in one
//! line. Only listening needs a connection that lasts; behind a pooler it is left out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainstay_core::id::{OwnerId, Seq, SessionId};
use sqlx::postgres::PgListener;
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinHandle;

use super::pool::Pool;
use super::statement::Statement;
use super::trouble::shortened;

const CHANNEL: &str = "mainstay";
/// Apart from the other, where what is not understood may mean that anything has changed.
const RELAY: &str = "mainstay_live";
/// Bytes of one notification's text.
const LONGEST: usize = 7_900;
/// Sessions that one notification names; its text may have 8,000 bytes.
const MOST: usize = 128;
/// Hints that a slow reader may be behind by, before it has to sweep.
const BEHIND: usize = 1024;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Something may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Anywhere: what was told before, and maybe more, was not heard.
    Sweep,
    /// In this session, up to this seq at least.
    Changed { session: SessionId, seq: Seq },
}

/// Hints of other nodes, from now on.
pub struct Hints {
    /// `None` once it has been told to sweep at the beginning.
    first: bool,
    heard: broadcast::Receiver<Hint>,
}

impl Hints {
    /// The next hint; [`Hint::Sweep`] at first, and whenever some were missed. `None` once the store is
    /// closed.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Hint> {
        if std::mem::take(&mut self.first) {
            return Some(Hint::Sweep);
        }
        match self.heard.recv().await {
            Ok(hint) => Some(hint),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Hint::Sweep),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Tells others, and listens to them. Dropped with the store.
pub(super) struct Board {
    told: Arc<Told>,
    heard: Mutex<Option<broadcast::Sender<Hint>>>,
    /// What others relay.
    relayed: broadcast::Sender<Arc<str>>,
    node: OwnerId,
    pool: Arc<Pool>,
    tasks: Vec<JoinHandle<()>>,
}

/// What other nodes relay, from now on.
pub struct Messages(broadcast::Receiver<Arc<str>>);

impl Messages {
    /// The next message; some may be missed. `None` once the store is closed.
    ///
    /// # Cancel safety
    /// Nothing is lost by it.
    pub async fn next(&mut self) -> Option<Arc<str>> {
        loop {
            match self.0.recv().await {
                Ok(message) => return Some(message),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

#[derive(Default)]
struct Told {
    /// Sessions that were written since the last notification.
    news: Mutex<HashMap<SessionId, Seq>>,
    rung: Notify,
}

impl Board {
    pub(super) fn new(pool: Arc<Pool>, node: OwnerId, every: Option<Duration>) -> Self {
        let told = Arc::new(Told::default());
        let (heard, _) = broadcast::channel(BEHIND);
        let (relayed, _) = broadcast::channel(BEHIND);
        let mut tasks = Vec::new();
        if let Some(every) = every {
            tasks.push(tokio::spawn(tell(told.clone(), pool.clone(), node, every)));
            let both = (heard.clone(), relayed.clone());
            tasks.push(tokio::spawn(listen(pool.clone(), node, both)));
        }
        Self {
            told,
            heard: Mutex::new(Some(heard)),
            relayed,
            node,
            pool,
            tasks,
        }
    }

    /// A session was written.
    pub(super) fn wrote(&self, session: SessionId, seq: Seq) {
        if self.tasks.is_empty() {
            return;
        }
        self.told.news().insert(session, seq);
        self.told.rung.notify_one();
    }

    pub(super) fn hints(&self) -> Hints {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = match &*heard {
            Some(heard) => heard.subscribe(),
            None => broadcast::channel(1).1,
        };
        Hints { first: true, heard }
    }

    /// Whether this node tells others anything, and hears from them.
    pub(super) fn is_on(&self) -> bool {
        !self.tasks.is_empty()
    }

    pub(super) fn messages(&self) -> Messages {
        Messages(self.relayed.subscribe())
    }

    /// Sends these to all other nodes, in one statement; those that are too long are left out.
    pub(super) async fn relay(&self, messages: &[String]) {
        let texts = messages
            .iter()
            .map(|message| format!("{} {message}", self.node))
            .filter(|text| text.len() <= LONGEST);
        let texts: Vec<String> = texts.collect();
        if texts.is_empty() || !self.is_on() {
            return;
        }
        let statement = Statement::new("SELECT pg_notify($1, x) FROM unnest($2) AS x")
            .bind(RELAY)
            .bind(texts);
        if let Err(error) = self.pool.once(&statement).await {
            tracing::debug!(%error, "other nodes were not told of progress");
        }
    }

    pub(super) fn close(&self) {
        for task in &self.tasks {
            task.abort();
        }
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        *heard = None;
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.close();
    }
}

impl Told {
    fn news(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Seq>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn tell(told: Arc<Told>, pool: Arc<Pool>, node: OwnerId, every: Duration) {
    loop {
        told.rung.notified().await;
        // What others write meanwhile goes along.
        tokio::time::sleep(shortened(every)).await;
        let news = std::mem::take(&mut *told.news());
        if news.is_empty() {
            continue;
        }
        let statement = Statement::new("SELECT pg_notify($1, $2)")
            .bind(CHANNEL)
            .bind(text(node, &news));
        if let Err(error) = pool.once(&statement).await {
            tracing::debug!(%error, "other nodes were not told of what was written");
        }
    }
}

fn text(node: OwnerId, news: &HashMap<SessionId, Seq>) -> String {
    let mut text = node.to_string();
    if news.len() > MOST {
        return text;
    }
    for (session, seq) in news {
        text.push_str(&format!(" {}:{seq}", session.0.simple()));
    }
    text
}

/// What a notification of another node says; `None` for one's own.
fn read(node: OwnerId, text: &str) -> Option<Vec<Hint>> {
    let mut words = text.split(' ');
    if words.next() == Some(node.to_string().as_str()) {
        return None;
    }
    let changed = |word: &str| {
        let (session, seq) = word.split_once(':')?;
        let (session, seq) = (session.parse().ok()?, seq.parse().ok()?);
        Some(Hint::Changed { session, seq })
    };
    let hints: Option<Vec<Hint>> = words.map(changed).collect();
    // One that names none, or that is not understood, may mean any.
    let hints = hints.filter(|hints| !hints.is_empty());
    Some(hints.unwrap_or_else(|| vec![Hint::Sweep]))
}

async fn listen(
    pool: Arc<Pool>,
    node: OwnerId,
    (heard, relayed): (broadcast::Sender<Hint>, broadcast::Sender<Arc<str>>),
) {
    let mut pause = Duration::from_millis(50);
    loop {
        if let Ok(mut listener) = connect(&pool).await {
            pause = Duration::from_millis(50);
            // Whatever was told before is missed. Nobody may be there to hear it.
            let _ = heard.send(Hint::Sweep);
            // It does not come back by itself: what is told in between would be missed unseen.
            while let Ok(Some(notification)) = listener.try_recv().await {
                if notification.channel() == RELAY {
                    let text = notification.payload();
                    if let Some((from, message)) = text.split_once(' ')
                        && from != node.to_string()
                    {
                        let _ = relayed.send(message.into());
                    }
                    continue;
                }
                for hint in read(node, notification.payload()).into_iter().flatten() {
                    let _ = heard.send(hint);
                }
            }
        }
        tokio::time::sleep(shortened(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connect(pool: &Pool) -> Result<PgListener, sqlx::Error> {
    let own = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(pool.options().clone());
    let mut listener = PgListener::connect_with(&own).await?;
    listener.eager_reconnect(false);
    listener.listen_all([CHANNEL, RELAY]).await?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let (node, other) = (OwnerId::new(), OwnerId::new());
        let news: HashMap<_, _> = (0..MOST as u64).map(|n| (SessionId::new(), n)).collect();
        let told = text(node, &news);
        assert!(told.len() < 8_000, "{}", told.len());
        assert_eq!(read(node, &told), None);
        let heard = read(other, &told).unwrap();
        assert_eq!(heard.len(), news.len());
        for (session, seq) in &news {
            let (session, seq) = (*session, *seq);
            assert!(heard.contains(&Hint::Changed { session, seq }));
        }
        let more: HashMap<_, _> = (0..=MOST as u64).map(|n| (SessionId::new(), n)).collect();
        assert_eq!(read(other, &text(node, &more)), Some(vec![Hint::Sweep]));
        assert_eq!(read(other, "of a later build"), Some(vec![Hint::Sweep]));
    }
}
