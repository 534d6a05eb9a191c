//! What a runner is shown of a session with a long history, as the host shows it: one page of a store
//! away, with the newest item, which is not committed yet, laid over it.

use std::path::Path;
use std::sync::Arc;

use mainstay_core::claim::Fence;
use mainstay_core::commit::{Append, Commit, Write};
use mainstay_core::event::{EventBody, EventDraft, SessionCreated};
use mainstay_core::history::{Item, ItemBody, ModelRef};
use mainstay_core::id::{ExecutionId, OwnerId, Seq, SessionId};
use mainstay_core::model::{Effect, Part, Range, ToolOutcome, ToolResult};
use mainstay_core::overlay::Overlay;
use mainstay_core::plugin::{AgentView, Budget, Model, ToolView, Trigger, View};
use mainstay_core::port::Store;
use mainstay_store::{Options, SqliteStore};

/// Bytes of an item's text.
const ITEM_BYTES: usize = 300;
/// Events of a commit while a history is made.
const BATCH: u64 = 5_000;
/// No claim runs out meanwhile.
const LEASE_MS: u64 = 3_600_000;

/// A store with nothing in it.
///
/// # Panics
/// It cannot be opened.
pub async fn store(dir: &Path) -> Arc<dyn Store> {
    let store = SqliteStore::open(dir.join("history.db"), Options::default()).await;
    Arc::new(store.expect("a new database"))
}

/// The view after a tool's result, in a session with so many items before it.
///
/// # Panics
/// The store refuses.
pub async fn view(store: &Arc<dyn Store>, items: u64) -> View {
    let session = SessionId::new();
    let (head, _) = fill(&**store, session, items, ITEM_BYTES).await;
    let result = ItemBody::ToolResult(ToolResult {
        call: "1".to_owned(),
        tool: "thing".to_owned(),
        outcome: ToolOutcome::Succeeded,
        output: vec![Part::Text("x".repeat(ITEM_BYTES))],
        whole: None,
    });
    shown(store, session, head, result, Trigger::ToolsFinished)
}

/// The view at the start of a turn with this prompt, in a new session.
///
/// # Panics
/// The store refuses.
pub async fn prompted(store: &Arc<dyn Store>, prompt: &str) -> View {
    let session = SessionId::new();
    let (head, _) = fill(&**store, session, 0, 0).await;
    let prompt = ItemBody::User(vec![Part::Text(prompt.to_owned())]);
    shown(store, session, head, prompt, Trigger::TurnStarted)
}

/// The view of a session, with its newest item not committed yet.
fn shown(
    store: &Arc<dyn Store>,
    session: SessionId,
    head: Seq,
    body: ItemBody,
    trigger: Trigger,
) -> View {
    let through = head + 1;
    let newest = Item {
        seq: through,
        at: 0,
        body,
    };
    let history = Overlay::new(Arc::clone(store), session, through, vec![newest]);
    View {
        session,
        now: 0,
        trigger,
        fresh: Range {
            after: through - 1,
            through,
        },
        context: Range { after: 0, through },
        history: Arc::new(history),
        open_calls: Vec::new(),
        agent: AgentView {
            name: "agent".to_owned(),
            system_prompt: Some("You are measured.".to_owned()),
            model: ModelRef {
                provider: "parrot".to_owned(),
                model: "parrot".to_owned(),
            },
            model_info: None,
            options: None,
        },
        tools: vec![ToolView {
            name: "thing".to_owned(),
            toolbox: "bench".to_owned(),
            effect: Effect::Pure,
        }],
        budget: Budget {
            steps: 10,
            tokens: None,
            cost: None,
            time_ms: None,
        },
        state: None,
    }
}

/// The same, of an agent whose model is known to take so much.
#[must_use]
pub fn with_context_limit(mut view: View, tokens: u32) -> View {
    view.agent.model_info = Some(Model {
        id: "parrot".to_owned(),
        context_tokens: Some(tokens),
        max_output_tokens: None,
        capabilities: Vec::new(),
        price: None,
    });
    view
}

/// Makes a session with so many items, each an event with a text of so many bytes; gives its head and the
/// claim that it is left with.
///
/// # Panics
/// The store refuses.
pub async fn fill(store: &dyn Store, session: SessionId, items: u64, bytes: usize) -> (Seq, Fence) {
    let commit = async |write| {
        let commit = Commit {
            session,
            at: 0,
            write,
        };
        let committed = store.commit(commit).await;
        committed.expect("a commit").tail.session.head
    };
    commit(Write::Create(SessionCreated {
        agent: "agent".to_owned(),
        ..SessionCreated::default()
    }))
    .await;
    let fence = Fence {
        execution: ExecutionId::new(),
        owner: OwnerId::new(),
    };
    let mut head = commit(Write::Claim {
        execution: fence.execution,
        owner: fence.owner,
        lease_ms: LEASE_MS,
        forced: Some(10),
        resumed: false,
        by_itself: false,
    })
    .await;
    let mut left = items;
    while left > 0 {
        let batch = left.min(BATCH);
        let note = || EventBody::RunnerNoted {
            parts: vec![Part::Text("x".repeat(bytes))],
        };
        head = commit(Write::Append(Append {
            fence,
            expected_head: None,
            begins: false,
            events: (0..batch).map(|_| EventDraft::new(note())).collect(),
            end: None,
        }))
        .await;
        left -= batch;
    }
    (head, fence)
}
