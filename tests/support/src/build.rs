//! Commits and events, as short as tests want to write them.

use mainstay_core::claim::Fence;
use mainstay_core::commit::{Append, Commit, End, Write};
use mainstay_core::event::{
    Basis, Delivery, EventBody, EventDraft, InputContent, Piece, PluginRef, ProviderRef,
    SessionCreated, StepStarted, Timing, TurnOutcome,
};
use mainstay_core::history::Ending;
use mainstay_core::id::{ExecutionId, InputId, Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::{
    Effect, FinishReason, ModelOptions, Part, Range, ToolCall, ToolChoice, ToolOutcome, ToolResult,
    Usage,
};
use mainstay_core::plugin::{
    Action, ApprovalRequest, Budget, ModelCall, ProviderConfig, Segment, ToolSet, Trigger,
};

/// When the events of these builders are said to be written.
pub const AT: Millis = 1_700_000_000_000;

/// The lease of [`claim`].
pub const LEASE_MS: u64 = 30_000;

/// A commit at [`AT`].
#[must_use]
pub fn commit(session: SessionId, write: Write) -> Commit {
    Commit {
        session,
        at: AT,
        write,
    }
}

/// Begins a session of the agent `test`.
#[must_use]
pub fn create(session: SessionId) -> Commit {
    commit(
        session,
        Write::Create(SessionCreated {
            agent: "test".into(),
            ..SessionCreated::default()
        }),
    )
}

/// Text as the parts of a message.
#[must_use]
pub fn text(text: &str) -> Vec<Part> {
    vec![Part::Text(text.into())]
}

/// Admits a prompt.
#[must_use]
pub fn admit(session: SessionId, input: InputId, delivery: Delivery, prompt: &str) -> Commit {
    commit(
        session,
        Write::Admit {
            input,
            delivery,
            content: InputContent::Prompt {
                parts: text(prompt),
            },
        },
    )
}

/// A fresh execution of a fresh owner.
#[must_use]
pub fn fence() -> Fence {
    Fence {
        execution: ExecutionId::new(),
        owner: OwnerId::new(),
    }
}

/// Claims a session for [`LEASE_MS`].
#[must_use]
pub fn claim(session: SessionId, fence: Fence) -> Commit {
    let Fence { execution, owner } = fence;
    commit(
        session,
        Write::Claim {
            execution,
            owner,
            lease_ms: LEASE_MS,
            forced: None,
            resumed: false,
            by_itself: false,
        },
    )
}

/// Interrupts a session, for no parent's sake and without going on.
#[must_use]
pub fn interrupt(session: SessionId) -> Commit {
    commit(
        session,
        Write::Interrupt {
            cause: None,
            and_continue: false,
        },
    )
}

/// Writes events under a claim.
#[must_use]
pub fn append(
    session: SessionId,
    fence: Fence,
    events: impl IntoIterator<Item = EventBody>,
) -> Commit {
    let events = events.into_iter().map(EventDraft::new).collect();
    commit(
        session,
        Write::Append(Append {
            fence,
            expected_head: None,
            begins: false,
            events,
            end: None,
        }),
    )
}

/// Ends an execution.
#[must_use]
pub fn end(session: SessionId, fence: Fence, end: End) -> Commit {
    let write = Append {
        fence,
        expected_head: None,
        begins: false,
        events: Vec::new(),
        end: Some(end),
    };
    commit(session, Write::Append(write))
}

/// Settles a claim that has expired.
#[must_use]
pub fn recover(session: SessionId, seen: Fence) -> Commit {
    commit(
        session,
        Write::Recover {
            seen,
            counting: mainstay_core::recovery::Counting::to(3),
        },
    )
}

/// Changes the append inside a commit.
#[must_use]
pub fn with(mut commit: Commit, change: impl FnOnce(&mut Append)) -> Commit {
    match &mut commit.write {
        Write::Append(append) => change(append),
        other => panic!("not an append: {other:?}"),
    }
    commit
}

/// Begins a turn of ten steps.
#[must_use]
pub fn turn_started() -> EventBody {
    EventBody::TurnStarted { steps: 10 }
}

/// A step of the runner `test` with this action.
#[must_use]
pub fn step_started(action: Action) -> EventBody {
    EventBody::StepStarted(Box::new(StepStarted {
        basis: Basis {
            now: AT,
            trigger: Trigger::TurnStarted,
            fresh: Range::default(),
            context: Range::default(),
            budget: Budget {
                steps: 10,
                tokens: None,
                cost: None,
                time_ms: None,
            },
            state_from: None,
        },
        runner: PluginRef {
            alias: "test".into(),
            name: "test".into(),
            digest: "d-runner".into(),
        },
        provider: asks_model(&action).then(|| ProviderRef {
            alias: "provider".into(),
            name: "provider".into(),
            digest: "d-provider".into(),
            model: "model".into(),
            config: ProviderConfig::default(),
        }),
        toolboxes: Vec::new(),
        action,
        state: None,
        hosted_once: false,
        spawn_refused: None,
        decide_us: 0,
    }))
}

fn asks_model(action: &Action) -> bool {
    matches!(action, Action::CallModel(_))
}

/// Asks a model with everything so far.
#[must_use]
pub fn call_model() -> Action {
    Action::CallModel(ModelCall {
        model: None,
        transcript: vec![Segment::Items(Range {
            after: 0,
            through: Seq::MAX >> 1,
        })],
        tools: ToolSet::All,
        own_tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        hosted_tools: Vec::new(),
        options: ModelOptions::default(),
    })
}

/// Calls tools of these ids, all of the tool `tool`.
#[must_use]
pub fn call_tools(ids: &[&str]) -> Action {
    let call = |id: &&str| ToolCall {
        id: (*id).into(),
        tool: "tool".into(),
        arguments: "{}".into(),
    };
    Action::CallTools(ids.iter().map(call).collect())
}

/// The model said something.
#[must_use]
pub fn output(step: Seq, pieces: impl IntoIterator<Item = Piece>) -> EventBody {
    EventBody::StepOutput {
        step,
        pieces: pieces.into_iter().collect(),
    }
}

/// A whole call by the model.
#[must_use]
pub fn call_pieces(id: &str) -> [Piece; 3] {
    [
        Piece::Call {
            id: id.into(),
            tool: "tool".into(),
        },
        Piece::Arguments {
            id: id.into(),
            text: "{}".into(),
        },
        Piece::CallReady { id: id.into() },
    ]
}

/// The model's answer is over.
#[must_use]
pub fn model_ended(step: Seq, reason: FinishReason) -> EventBody {
    EventBody::ModelEnded {
        step,
        ending: Ending::Finished(reason),
        usage: Some(Usage {
            input_tokens: Some(10),
            output_tokens: Some(5),
            cost: Some(7),
            ..Usage::default()
        }),
        timing: Timing::default(),
    }
}

/// Write-ahead of a call.
#[must_use]
pub fn call_started(step: Seq, call: &str, effect: Effect, run: u32) -> EventBody {
    EventBody::CallStarted {
        step,
        call: call.into(),
        toolbox: "toolbox".into(),
        digest: "d-toolbox".into(),
        effect,
        key: format!("key-{step}-{call}"),
        run,
    }
}

/// A person is to be asked about a call.
#[must_use]
pub fn call_held(step: Seq, call: &str) -> EventBody {
    EventBody::CallHeld {
        step,
        call: call.into(),
        request: ApprovalRequest {
            key: mainstay_core::approval::key(step, call),
            question: "may it?".into(),
            details: Some("{}".into()),
        },
    }
}

/// A call's result.
#[must_use]
pub fn call_settled(step: Seq, call: &str) -> EventBody {
    EventBody::CallSettled {
        step,
        result: ToolResult {
            call: call.into(),
            tool: "tool".into(),
            outcome: ToolOutcome::Succeeded,
            output: text("done"),
            whole: None,
        },
        timing: Timing::default(),
    }
}

/// The runner is done.
#[must_use]
pub fn turn_ended() -> EventBody {
    EventBody::TurnEnded {
        outcome: TurnOutcome::Done,
        decided: None,
    }
}
