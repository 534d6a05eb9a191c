use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use mainstay_core::claim::Claim;
use mainstay_core::commit::{self, Commit, Known, Refused, Reply};
use mainstay_core::event::{self, Event, Record};
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{EventId, ExecutionId, InputId, Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::nodes::{Beat, Beaten, Lag, NodeRow};
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::{Alias, Clock, Committed, Dump, Listed, Scan, Store, StoreError};
use mainstay_core::rebuild;
use mainstay_core::tail::{Execution, Input, InputStatus, Tail};
use tokio::sync::watch;

use crate::ManualClock;

/// A store in memory: [`commit::apply`] behind a mutex, and faults on order.
///
/// Its clock is wall time as it was when it was made and the monotonic clock since.
pub struct MemoryStore {
    name: String,
    clock: Arc<dyn Clock>,
    /// Wall and monotonic time at the beginning.
    began: (Millis, Millis),
    state: Mutex<State>,
    faults: Mutex<Faults>,
    gates: Mutex<Vec<Arc<GateInner>>>,
}

/// A commit that was applied, as tests look at it.
#[derive(Clone, Debug)]
pub struct Logged {
    pub commit: Commit,
    /// With their seqs; empty where only a claim or intents changed.
    pub events: Vec<Event>,
    pub reply: Reply,
    /// The claim after it.
    pub claim: Option<Claim>,
}

type Matches = Box<dyn Fn(&Commit) -> bool + Send + Sync>;

#[derive(Default)]
struct Faults {
    fail_next: u32,
    fail_when: Option<Matches>,
    lose_next: u32,
    lose_when: Option<Matches>,
    renewals_fail: bool,
    down: bool,
}

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, Rows>,
    input_ids: HashMap<InputId, (SessionId, Seq)>,
    event_ids: HashMap<EventId, (SessionId, Seq)>,
    blobs: HashMap<String, Vec<u8>>,
    plugins: BTreeMap<String, (PluginInfo, Vec<u8>)>,
    aliases: BTreeMap<(String, String), Alias>,
    nodes: BTreeMap<OwnerId, NodeRow>,
    log: Vec<Logged>,
}

struct Rows {
    tail: Arc<Tail>,
    events: Vec<Record>,
    rows: rebuild::Rows,
}

impl Rows {
    fn new(tail: Arc<Tail>) -> Self {
        Self {
            tail,
            events: Vec::new(),
            rows: rebuild::Rows::default(),
        }
    }

    fn is_due(&self) -> bool {
        self.tail.claim.is_none() && self.tail.is_runnable()
    }

    fn dump(&self) -> Dump {
        let mut executions: Vec<Execution> = self.rows.executions.values().cloned().collect();
        executions.sort_by_key(|execution| (execution.started, execution.id));
        Dump {
            events: self.events.clone(),
            session: Some(self.tail.session.clone()),
            claim: self.tail.claim.clone(),
            items: self.rows.items.values().cloned().collect(),
            inputs: self.rows.inputs.values().cloned().collect(),
            steps: self.rows.steps.values().cloned().collect(),
            calls: self.rows.calls.values().cloned().collect(),
            executions,
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::new(ManualClock::default()))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(action: &'static str, cause: &'static str) -> StoreError {
    StoreError::Unavailable {
        action,
        cause: cause.into(),
    }
}

impl MemoryStore {
    /// An empty store by this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let began = (clock.wall(), clock.monotonic());
        Self {
            name: format!("memory:{}", OwnerId::new()),
            clock,
            began,
            state: Mutex::default(),
            faults: Mutex::default(),
            gates: Mutex::default(),
        }
    }

    /// The next `n` commits fail and leave no trace.
    pub fn fail_next(&self, n: u32) {
        locked(&self.faults).fail_next = n;
    }

    /// Commits that match fail and leave no trace, until [`MemoryStore::heal`].
    pub fn fail_when(&self, matches: impl Fn(&Commit) -> bool + Send + Sync + 'static) {
        locked(&self.faults).fail_when = Some(Box::new(matches));
    }

    /// The next `n` commits are stored, and their writers told that they were not.
    pub fn lose_answers(&self, n: u32) {
        locked(&self.faults).lose_next = n;
    }

    /// Commits that match are stored, and their writers told that they were not, until
    /// [`MemoryStore::heal`].
    pub fn lose_answers_when(&self, matches: impl Fn(&Commit) -> bool + Send + Sync + 'static) {
        locked(&self.faults).lose_when = Some(Box::new(matches));
    }

    /// Renewals fail, or work again.
    pub fn fail_renewals(&self, fail: bool) {
        locked(&self.faults).renewals_fail = fail;
    }

    /// Nothing is answered but by errors, or all is well again.
    pub fn set_down(&self, down: bool) {
        locked(&self.faults).down = down;
    }

    /// Takes all faults away.
    pub fn heal(&self) {
        *locked(&self.faults) = Faults::default();
    }

    /// Holds back commits that match, before they are judged, until the gate is opened or dropped.
    pub fn gate(&self, matches: impl Fn(&Commit) -> bool + Send + Sync + 'static) -> Gate {
        let inner = Arc::new(GateInner {
            matches: Box::new(matches),
            held: watch::Sender::new(0),
            open: watch::Sender::new(false),
        });
        locked(&self.gates).push(inner.clone());
        Gate { inner }
    }

    /// Every commit that was stored, oldest first.
    #[must_use]
    pub fn log(&self) -> Vec<Logged> {
        locked(&self.state).log.clone()
    }

    /// Forgets [`MemoryStore::log`] so far and gives it.
    pub fn take_log(&self) -> Vec<Logged> {
        std::mem::take(&mut locked(&self.state).log)
    }

    /// Expires all claims now, as a process does that takes over the file of one that was killed.
    pub fn restart(&self) {
        let now = self.time();
        for rows in locked(&self.state).sessions.values_mut() {
            if let Some(claim) = &mut Arc::make_mut(&mut rows.tail).claim {
                claim.expires_at = claim.expires_at.min(now);
            }
        }
    }

    /// Adds an event of a type that this build does not know, as a newer build has left it.
    ///
    /// # Panics
    /// If there is no such session.
    pub fn plant(&self, session: SessionId, kind: &str, version: u32) {
        let mut state = locked(&self.state);
        let rows = state
            .sessions
            .get_mut(&session)
            .expect("the session exists");
        let row = &mut Arc::make_mut(&mut rows.tail).session;
        row.head += 1;
        row.foreign
            .get_or_insert_with(|| event::foreign(row.head, kind, version));
        let record = Record {
            session,
            seq: row.head,
            id: EventId::new(),
            kind: kind.into(),
            version,
            at: row.updated_at,
            execution: None,
            recovery: None,
            data: serde_json::json!([1]),
            compacted: None,
        };
        rows.events.push(record);
    }

    fn time(&self) -> Millis {
        self.began.0 + self.clock.monotonic().saturating_sub(self.began.1)
    }

    fn up(&self, action: &'static str) -> Result<MutexGuard<'_, State>, StoreError> {
        if locked(&self.faults).down {
            return Err(unavailable(action, "the store is down"));
        }
        Ok(locked(&self.state))
    }

    /// Whether the commit fails, and whether its answer is lost.
    fn fate(&self, commit: &Commit) -> (bool, bool) {
        let mut faults = locked(&self.faults);
        let mut fails = faults.down
            || faults
                .fail_when
                .as_ref()
                .is_some_and(|matches| matches(commit));
        if !fails && faults.fail_next > 0 {
            faults.fail_next -= 1;
            fails = true;
        }
        let mut loses = !fails
            && faults
                .lose_when
                .as_ref()
                .is_some_and(|matches| matches(commit));
        if !fails && !loses && faults.lose_next > 0 {
            faults.lose_next -= 1;
            loses = true;
        }
        (fails, loses)
    }
}

impl State {
    fn known(&self, commit: &Commit) -> Known {
        let input = commit.input().and_then(|id| {
            let (session, seq) = self.input_ids.get(&id)?;
            self.sessions.get(session)?.rows.inputs.get(seq).cloned()
        });
        let mut seen = HashSet::new();
        let ids = commit.event_ids().into_iter().filter(|id| seen.insert(*id));
        let held = |id: EventId| {
            let (session, seq) = self.event_ids.get(&id)?;
            self.sessions
                .get(session)?
                .events
                .get(*seq as usize - 1)
                .cloned()
        };
        let rows = self.sessions.get(&commit.session);
        let held_at = |seq: Seq| rows?.events.get(seq.checked_sub(1)? as usize).cloned();
        let replayed = commit.replayed().map(|(first, last)| first..=last);
        let inputs = commit.replayed_inputs();
        let inputs = inputs.iter().filter_map(|id| {
            let (session, seq) = self.input_ids.get(id)?;
            self.sessions.get(session)?.rows.inputs.get(seq).cloned()
        });
        Known {
            input,
            events: ids.filter_map(held).collect(),
            held: replayed.into_iter().flatten().map_while(held_at).collect(),
            inputs: inputs.collect(),
        }
    }

    fn commit(&mut self, commit: &Commit, now: Millis) -> Result<Committed, StoreError> {
        let known = self.known(commit);
        let session = commit.session;
        let tail = self.sessions.get(&session).map(|rows| rows.tail.clone());
        let applied = commit::apply(tail.as_deref(), commit, &known, now)?;
        let mut own = HashMap::new();
        for event in &applied.events {
            let held = self
                .event_ids
                .get(&event.id)
                .map(|(_, seq)| *seq)
                .or_else(|| own.insert(event.id, event.seq));
            if let Some(seq) = held {
                return Err(Refused::EventConflict { id: event.id, seq }.into());
            }
        }

        let tail = Arc::new(applied.tail);
        let rows = self
            .sessions
            .entry(session)
            .or_insert_with(|| Rows::new(tail.clone()));
        rows.tail = tail.clone();
        rows.events.extend(applied.events.iter().map(Event::encode));
        for event in &applied.events {
            self.event_ids.insert(event.id, (session, event.seq));
        }
        for input in &applied.changes.inputs {
            self.input_ids.insert(input.id, (session, input.seq));
        }
        rows.rows.take(applied.changes);
        self.log.push(Logged {
            commit: commit.clone(),
            events: applied.events.clone(),
            reply: applied.reply.clone(),
            claim: tail.claim.clone(),
        });
        Ok(Committed {
            events: applied.events,
            tail,
            reply: applied.reply,
        })
    }
}

struct GateInner {
    matches: Matches,
    /// Commits that have come to it so far.
    held: watch::Sender<u32>,
    open: watch::Sender<bool>,
}

/// Holds commits back. Opens when it is dropped.
#[must_use]
pub struct Gate {
    inner: Arc<GateInner>,
}

impl Gate {
    /// Waits until `n` commits have come to the gate.
    pub async fn reached(&self, n: u32) {
        let mut held = self.inner.held.subscribe();
        // The sender lives as long as this gate.
        let _ = held.wait_for(|held| *held >= n).await;
    }

    /// Lets all through, those included that come later.
    pub fn open(&self) {
        self.inner.open.send_replace(true);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let gates: Vec<Arc<GateInner>> = {
            let mut gates = locked(&self.gates);
            gates.retain(|gate| !*gate.open.borrow());
            gates
                .iter()
                .filter(|gate| (gate.matches)(&commit))
                .cloned()
                .collect()
        };
        for gate in gates {
            let mut open = gate.open.subscribe();
            gate.held.send_modify(|held| *held += 1);
            let _ = open.wait_for(|open| *open).await;
        }
        let (fails, loses) = self.fate(&commit);
        if fails {
            return Err(unavailable("commit", "ordered by the test"));
        }
        let done = locked(&self.state).commit(&commit, self.time())?;
        if loses {
            return Err(unavailable(
                "commit",
                "the answer was lost, by order of the test",
            ));
        }
        Ok(done)
    }

    async fn tail(&self, session: SessionId) -> Result<Option<Arc<Tail>>, StoreError> {
        Ok(self
            .up("read a session")?
            .sessions
            .get(&session)
            .map(|rows| rows.tail.clone()))
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        let state = self.up("read events")?;
        let Some(rows) = state.sessions.get(&session) else {
            return Ok(None);
        };
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        let page = rows
            .events
            .iter()
            .skip(after)
            .take(limit as usize)
            .cloned()
            .collect();
        Ok(Some((page, rows.tail.session.head)))
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        let state = self.up("read items")?;
        let Some(rows) = state.sessions.get(&session) else {
            return Ok(Vec::new());
        };
        let through = range.through.min(rows.tail.session.shown_through());
        let items = rows
            .rows
            .items
            .values()
            .filter(|item| item.seq > range.after && item.seq <= through);
        Ok(match order {
            Order::OldestFirst => items.take(limit as usize).cloned().collect(),
            Order::NewestFirst => items.rev().take(limit as usize).cloned().collect(),
        })
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        let items = self
            .items(session, range, Order::OldestFirst, u32::MAX)
            .await?;
        Ok(Size {
            items: items.len() as u64,
            bytes: items.iter().map(Item::text_bytes).sum(),
        })
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        let state = self.up("read inputs")?;
        let Some(rows) = state.sessions.get(&session) else {
            return Ok(Vec::new());
        };
        let wanted = |input: &&Input| all || input.status == InputStatus::Pending;
        Ok(rows.rows.inputs.values().filter(wanted).cloned().collect())
    }

    async fn sessions(
        &self,
        before: Option<(Millis, SessionId)>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError> {
        let state = self.up("list sessions")?;
        let mut listed: Vec<Listed> = state
            .sessions
            .values()
            .filter(|rows| {
                before.is_none_or(|before| {
                    (rows.tail.session.created_at, rows.tail.session.id) < before
                })
            })
            .map(|rows| Listed {
                session: rows.tail.session.clone(),
                claim: rows.tail.claim.clone(),
                runnable: rows.tail.is_runnable(),
                pending_inputs: rows.tail.inputs.len() as u64,
            })
            .collect();
        listed.sort_by_key(|listed| {
            std::cmp::Reverse((listed.session.created_at, listed.session.id))
        });
        listed.truncate(limit as usize);
        Ok(listed)
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        Ok(self
            .up("read a session")?
            .sessions
            .get(&session)
            .map(Rows::dump)
            .unwrap_or_default())
    }

    async fn delete(&self, session: SessionId) -> Result<bool, StoreError> {
        let mut state = self.up("delete a session")?;
        let Some(rows) = state.sessions.remove(&session) else {
            return Ok(false);
        };
        for event in &rows.events {
            state.event_ids.remove(&event.id);
        }
        for input in rows.rows.inputs.values() {
            state.input_ids.remove(&input.id);
        }
        Ok(true)
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        let now = self.time();
        let state = self.up("look for work")?;
        let mut expired: Vec<Claim> = state
            .sessions
            .values()
            .filter(|rows| rows.tail.session.foreign.is_none())
            .filter_map(|rows| rows.tail.claim.clone())
            .collect();
        expired.retain(|claim| claim.expires_at <= now);
        expired.sort_by_key(|claim| (claim.expires_at, claim.session));
        expired.truncate(limit as usize);
        let mut due: Vec<_> = state
            .sessions
            .values()
            .filter(|rows| rows.is_due())
            .collect();
        due.sort_by_key(|rows| (rows.tail.session.updated_at, rows.tail.session.id));
        let due = due
            .iter()
            .take(limit.min(places) as usize)
            .map(|rows| rows.tail.session.id)
            .collect();
        let mut timers: Vec<(Millis, SessionId)> = state
            .sessions
            .iter()
            .filter_map(|(id, rows)| Some((rows.tail.session.wake_at()?, *id)))
            .filter(|(at, _)| *at <= now)
            .collect();
        timers.sort_unstable();
        timers.truncate(limit as usize);
        let mut owing: Vec<(Millis, SessionId)> = state
            .sessions
            .iter()
            .filter(|(_, rows)| rows.tail.session.is_owing())
            .map(|(id, rows)| (rows.tail.session.updated_at, *id))
            .collect();
        owing.sort_unstable();
        owing.truncate(limit as usize);
        Ok(Scan {
            expired,
            due,
            timers: timers.into_iter().map(|(_, id)| id).collect(),
            owing: owing.into_iter().map(|(_, id)| id).collect(),
        })
    }

    async fn lag(&self) -> Result<Lag, StoreError> {
        let now = self.time();
        let state = self.up("look how much waits")?;
        let ages = |since: Vec<Millis>| {
            let oldest = since.iter().min().map(|at| now.saturating_sub(*at));
            (since.len().min(Lag::MOST as usize) as u64, oldest)
        };
        let claims = state
            .sessions
            .values()
            .filter(|rows| rows.tail.session.foreign.is_none());
        let claims = claims.filter_map(|rows| rows.tail.claim.as_ref());
        let expired = claims.map(|claim| claim.expires_at).filter(|at| *at <= now);
        let due = state.sessions.values().filter(|rows| rows.is_due());
        let (expired, oldest_expired_ms) = ages(expired.collect());
        let (due, oldest_due_ms) = ages(due.map(|rows| rows.tail.session.updated_at).collect());
        Ok(Lag {
            expired,
            oldest_expired_ms,
            due,
            oldest_due_ms,
        })
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        let now = self.time();
        if locked(&self.faults).renewals_fail {
            return Err(unavailable("renew claims", "ordered by the test"));
        }
        let named: HashSet<ExecutionId> = beat
            .executions
            .iter()
            .filter(|fence| fence.owner == beat.owner)
            .map(|fence| fence.execution)
            .collect();
        let mut beaten = Beaten {
            now: Some(now),
            ..Beaten::default()
        };
        let mut state = self.up("renew claims")?;
        for rows in state.sessions.values_mut() {
            let held = rows.tail.claim.as_ref().is_some_and(|claim| {
                claim.owner == beat.owner
                    && claim.expires_at > now
                    && named.contains(&claim.execution)
            });
            if !held {
                continue;
            }
            if let Some(claim) = &mut Arc::make_mut(&mut rows.tail).claim {
                claim.expires_at = now.saturating_add(beat.lease_ms);
                beaten.renewed.insert(claim.execution);
            }
        }
        if let Some(presence) = &beat.presence {
            let before = state.nodes.get(&beat.owner);
            let row = NodeRow::beaten(before, presence, beat.lease_ms, now);
            beaten.drain = row.drain_asked;
            state.nodes.insert(beat.owner, row);
        }
        Ok(beaten)
    }

    async fn nodes(&self) -> Result<(Vec<NodeRow>, Millis), StoreError> {
        let state = self.up("list nodes")?;
        let mut nodes: Vec<NodeRow> = state.nodes.values().cloned().collect();
        for node in &mut nodes {
            let claims = state
                .sessions
                .values()
                .filter_map(|rows| rows.tail.claim.as_ref());
            let own = claims.filter(|claim| claim.owner == node.identity.owner);
            node.claims = own.count() as u64;
        }
        nodes.sort_by_key(|node| (node.started_at, node.identity.owner));
        Ok((nodes, self.time()))
    }

    async fn node_drain(&self, owner: OwnerId) -> Result<Option<NodeRow>, StoreError> {
        let now = self.time();
        let mut state = self.up("ask a node to drain")?;
        let Some(row) = state.nodes.get_mut(&owner) else {
            return Ok(None);
        };
        let before = row.clone();
        row.drain_asked |= row.ended_at(now).is_none();
        Ok(Some(before))
    }

    async fn nodes_forget(&self, past_ms: u64) -> Result<u64, StoreError> {
        let now = self.time();
        let mut state = self.up("forget nodes")?;
        let before = state.nodes.len();
        let past = |at: Millis| at.saturating_add(past_ms) < now;
        state
            .nodes
            .retain(|_, row| !row.ended_at(now).is_some_and(past));
        Ok((before - state.nodes.len()) as u64)
    }

    async fn name(&self) -> Result<String, StoreError> {
        Ok(self.name.clone())
    }

    async fn now(&self) -> Result<Millis, StoreError> {
        self.up("read the clock").map(|_| self.time())
    }

    async fn blob_put(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.up("store a blob")?
            .blobs
            .entry(digest.into())
            .or_insert_with(|| bytes.into());
        Ok(())
    }

    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.up("read a blob")?.blobs.get(digest).cloned())
    }

    async fn plugin_put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), StoreError> {
        let mut state = self.up("store a plugin")?;
        let bytes = match state.plugins.remove(&info.digest) {
            Some((_, bytes)) => bytes,
            None => bytes.to_vec(),
        };
        state
            .plugins
            .insert(info.digest.clone(), (info.clone(), bytes));
        Ok(())
    }

    async fn plugin(&self, digest: &str) -> Result<Option<PluginInfo>, StoreError> {
        Ok(self
            .up("read a plugin")?
            .plugins
            .get(digest)
            .map(|(info, _)| info.clone()))
    }

    async fn plugin_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self
            .up("read a plugin")?
            .plugins
            .get(digest)
            .map(|(_, bytes)| bytes.clone()))
    }

    async fn plugins(&self) -> Result<Vec<PluginInfo>, StoreError> {
        Ok(self
            .up("list plugins")?
            .plugins
            .values()
            .map(|(info, _)| info.clone())
            .collect())
    }

    async fn plugin_delete(&self, digest: &str) -> Result<bool, StoreError> {
        Ok(self.up("delete a plugin")?.plugins.remove(digest).is_some())
    }

    async fn alias_put(
        &self,
        kind: Kind,
        alias: &str,
        digest: Option<&str>,
        source: Option<&str>,
    ) -> Result<(), StoreError> {
        let mut state = self.up("store an alias")?;
        let key = (kind.to_string(), alias.to_owned());
        match digest {
            Some(digest) => {
                let alias = Alias {
                    kind,
                    alias: alias.into(),
                    digest: digest.into(),
                    source: source.map(str::to_owned),
                };
                state.aliases.insert(key, alias);
            }
            None => drop(state.aliases.remove(&key)),
        }
        Ok(())
    }

    async fn aliases(&self) -> Result<Vec<Alias>, StoreError> {
        let state = self.up("list aliases")?;
        Ok(state.aliases.values().cloned().collect())
    }

    async fn digests_in_use(&self) -> Result<HashSet<String>, StoreError> {
        let state = self.up("read open steps")?;
        let mut digests = HashSet::new();
        for step in state
            .sessions
            .values()
            .filter_map(|rows| rows.tail.step.as_ref())
        {
            digests.insert(step.started.runner.digest.clone());
            digests.extend(
                step.started
                    .provider
                    .iter()
                    .map(|provider| provider.digest.clone()),
            );
            digests.extend(
                step.started
                    .toolboxes
                    .iter()
                    .map(|toolbox| toolbox.digest.clone()),
            );
        }
        Ok(digests)
    }
}
