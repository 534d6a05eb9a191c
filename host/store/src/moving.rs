//! Moving a store's sessions to another store, of either kind. A session travels as its rows are, text
//! for text, and arrives in one transaction; so a move that was cut off leaves whole sessions behind it,
//! and doing it again finds them equal and goes on. Neither store may be at work meanwhile: a session
//! that is there already must be the same, a beginning of it, or what it has become since.

mod compare;
pub(crate) mod parcel;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::id::{Digest, OwnerId, SessionId};
use mainstay_core::port::{Store, StoreError};
use serde::Serialize;

use compare::{Held, compare};
pub use parcel::Parcel;

/// How long is waited for what a process that has just ended leaves behind.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// A store that sessions can be moved from and to.
#[async_trait]
pub trait Movable: Store {
    /// What people call it: a path, or host, port and database.
    fn place(&self) -> String;

    /// How many other processes work on it. None on a file, which is one process' own.
    async fn others(&self) -> Result<u64, StoreError>;

    /// Claims that have not run out, with the milliseconds that are left of them.
    async fn living(&self) -> Result<Vec<Living>, StoreError>;

    /// All sessions, in the order of their ids.
    async fn session_ids(&self) -> Result<Vec<SessionId>, StoreError>;

    /// Digests of all blobs.
    async fn blob_digests(&self) -> Result<Vec<Digest>, StoreError>;

    /// All rows of a session, of one instant.
    async fn parcel(&self, session: SessionId) -> Result<Option<Parcel>, StoreError>;

    /// Writes a session, in place of one with its id, in one transaction. Its claim, if it has one, has
    /// run out there.
    ///
    /// # Cancel safety
    /// Dropped midway, it is there whole or not at all.
    async fn parcel_put(&self, parcel: &Parcel) -> Result<(), StoreError>;

    /// Changes the name by which this store's sessions are known elsewhere.
    async fn rename(&self, name: &str) -> Result<(), StoreError>;
}

/// A claim whose owner may be alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Living {
    pub session: SessionId,
    pub owner: OwnerId,
    pub left_ms: u64,
}

/// How far a move has come, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Sessions in the source.
    pub sessions: u64,
    /// Those that are new in the target.
    pub new: u64,
    /// Those that had grown in the source since they were moved, and were moved again.
    pub grown: u64,
    /// Those that were there already, equal.
    pub held: u64,
    /// Those that have gone on in the target since they were moved, and were left as they are there.
    pub ahead: u64,
    /// Events of the sessions that are new or had grown.
    pub events: u64,
    pub components: u64,
    pub aliases: u64,
    pub blobs: u64,
    /// What is another in the target, and was not moved.
    pub conflicts: Vec<Conflict>,
}

impl Moved {
    /// Sessions that were looked at.
    #[must_use]
    pub fn done(&self) -> u64 {
        let other = self.conflicts.iter().filter(|one| one.session.is_some());
        self.new + self.grown + self.held + self.ahead + other.count() as u64
    }
}

/// Something of the source that is another in the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// `None` for a plugin's name.
    pub session: Option<SessionId>,
    pub what: String,
}

/// Why nothing more was moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("{count} other processes work on {place}")]
    InUse { place: String, count: u64 },
    #[error("session {} is claimed for another {} s by owner {}", .0.session, .0.left_ms.div_ceil(1000), .0.owner)]
    Claimed(Living),
    #[error(
        "session {session} holds {what}, which this build does not know; move it with the build that wrote it"
    )]
    Foreign { session: SessionId, what: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Moves everything: components and their names, blobs, then session by session. `to` is `None` for a
/// target that does not exist yet, of which a dry run tells. What has been moved stays in the source
/// too; only one of the two may go on with it. `progress` hears how far it is.
///
/// # Errors
/// [`MoveError`]; what was moved before stays, and doing it again goes on from there. A session or name
/// that is another in the target is none, but is in [`Moved::conflicts`].
///
/// # Cancel safety
/// As with an error.
pub async fn move_all(
    from: &dyn Movable,
    to: Option<&dyn Movable>,
    dry_run: bool,
    progress: impl Fn(&Moved) + Send + Sync,
) -> Result<Moved, MoveError> {
    for store in [Some(from), to].into_iter().flatten() {
        alone(store).await?;
        if let Some(living) = store.living().await?.first() {
            return Err(MoveError::Claimed(*living));
        }
    }
    let sessions = from.session_ids().await?;
    let there: HashSet<SessionId> = match to {
        Some(to) => to.session_ids().await?.into_iter().collect(),
        None => HashSet::new(),
    };
    let mut moved = Moved {
        sessions: sessions.len() as u64,
        ..Moved::default()
    };
    if let Some(to) = to.filter(|_| there.is_empty() && !dry_run) {
        // An empty store becomes what the source was, to those that have exports of it.
        to.rename(&from.name().await?).await?;
    }
    plugins(from, to, dry_run, &mut moved).await?;
    blobs(from, to, dry_run, &mut moved).await?;
    for session in sessions {
        if let Some(tail) = from.tail(session).await?
            && let Some(what) = tail.session.foreign.clone()
        {
            let what = what.to_string();
            return Err(MoveError::Foreign { session, what });
        }
        let Some(here) = from.parcel(session).await? else {
            continue;
        };
        let held = match to.filter(|_| there.contains(&session)) {
            Some(to) => to.parcel(session).await?,
            None => None,
        };
        let held = held.map_or(Held::Nothing, |held| compare(&here, &held));
        let writes = matches!(held, Held::Nothing | Held::Beginning);
        if writes && let Some(to) = to.filter(|_| !dry_run) {
            to.parcel_put(&here).await?;
        }
        if writes {
            moved.events += here.events();
        }
        match held {
            Held::Nothing => moved.new += 1,
            Held::Beginning => moved.grown += 1,
            Held::Same => moved.held += 1,
            Held::Ahead => moved.ahead += 1,
            Held::Other(what) => {
                let session = Some(session);
                moved.conflicts.push(Conflict { session, what });
            }
        }
        progress(&moved);
    }
    Ok(moved)
}

/// Waits until nobody else works on a store.
async fn alone(store: &dyn Movable) -> Result<(), MoveError> {
    let begun = std::time::Instant::now();
    loop {
        let count = store.others().await?;
        if count == 0 {
            return Ok(());
        }
        if begun.elapsed() >= PATIENCE {
            let place = store.place();
            return Err(MoveError::InUse { place, count });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn plugins(
    from: &dyn Movable,
    to: Option<&dyn Movable>,
    dry_run: bool,
    moved: &mut Moved,
) -> Result<(), StoreError> {
    for info in from.plugins().await? {
        let held = match to {
            Some(to) => to.plugin(&info.digest).await?,
            None => None,
        };
        if held.is_some() {
            continue;
        }
        moved.components += 1;
        if let Some(to) = to.filter(|_| !dry_run)
            && let Some(bytes) = from.plugin_bytes(&info.digest).await?
        {
            to.plugin_put(&info, &bytes).await?;
        }
    }
    let held = match to {
        Some(to) => to.aliases().await?,
        None => Vec::new(),
    };
    let held: HashMap<_, _> = held
        .into_iter()
        .map(|alias| ((alias.kind, alias.alias), alias.digest))
        .collect();
    for one in from.aliases().await? {
        match held.get(&(one.kind, one.alias.clone())) {
            Some(digest) if *digest == one.digest => {}
            Some(digest) => moved.conflicts.push(Conflict {
                session: None,
                what: format!(
                    "the {} `{}` leads to {digest} there, and to {} here",
                    one.kind, one.alias, one.digest
                ),
            }),
            None => {
                moved.aliases += 1;
                if let Some(to) = to.filter(|_| !dry_run) {
                    let source = one.source.as_deref();
                    to.alias_put(one.kind, &one.alias, Some(&one.digest), source)
                        .await?;
                }
            }
        }
    }
    Ok(())
}

async fn blobs(
    from: &dyn Movable,
    to: Option<&dyn Movable>,
    dry_run: bool,
    moved: &mut Moved,
) -> Result<(), StoreError> {
    let held: HashSet<Digest> = match to {
        Some(to) => to.blob_digests().await?.into_iter().collect(),
        None => HashSet::new(),
    };
    for digest in from.blob_digests().await? {
        if held.contains(&digest) {
            continue;
        }
        moved.blobs += 1;
        if let Some(to) = to.filter(|_| !dry_run)
            && let Some(bytes) = from.blob(&digest).await?
        {
            to.blob_put(&digest, &bytes).await?;
        }
    }
    Ok(())
}
