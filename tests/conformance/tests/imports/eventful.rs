//! A session whose log has an event of every type.

use std::collections::BTreeSet;

use mainstay_core::claim::Fence;
use mainstay_core::commit::{End, Write};
use mainstay_core::edit::Fork;
use mainstay_core::event::{
    Delivery, EventBody, Forked, InputContent, Parent, Piece, Record, Reverted, SessionCreated,
    TurnOutcome,
};
use mainstay_core::history::{
    Approval, Assistant, Author, ChildOutcome, ChildResult, Ending, ItemBody, ModelRef, Signal,
};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::model::{
    Content, Effect, Failure, FailureClass, FinishReason, HostedResult, Media, ProviderState,
    ToolCall, ToolDefinition,
};
use mainstay_core::plugin::{
    Action, Answer, ApprovalRequest, Child, Compact, Condition, State, Summary, Wait,
};
use mainstay_core::policy::{Resume, ResumeMode};
use mainstay_core::state::States;
use mainstay_core::tail::Scope;
use mainstay_test_conformance::Harness;
use mainstay_test_support::build;

/// What one execution does, under its fence.
pub(super) struct Run<'h> {
    pub(super) h: &'h Harness,
    pub(super) session: SessionId,
    pub(super) fence: Fence,
}

impl<'h> Run<'h> {
    pub(super) async fn begin(h: &'h Harness, session: SessionId) -> Self {
        let fence = build::fence();
        h.ok(build::claim(session, fence)).await;
        Self { h, session, fence }
    }

    /// Writes events and gives the seq of the last.
    pub(super) async fn write(&self, events: impl IntoIterator<Item = EventBody>) -> Seq {
        let done = self
            .h
            .ok(build::append(self.session, self.fence, events))
            .await;
        done.tail.session.head
    }

    pub(super) async fn step(&self, action: Action) -> Seq {
        self.write([build::step_started(action)]).await
    }

    pub(super) async fn end(self, end: End) {
        self.h.ok(build::end(self.session, self.fence, end)).await;
    }
}

pub(super) async fn admit(
    h: &Harness,
    session: SessionId,
    delivery: Delivery,
    content: InputContent,
) -> InputId {
    let input = InputId::new();
    let write = Write::Admit {
        input,
        delivery,
        content,
    };
    h.ok(build::commit(session, write)).await;
    input
}

/// What a runner keeps.
fn kept() -> States {
    let mut states = States::default();
    let state = State {
        runner: "test".into(),
        state_version: 1,
        data: vec![0, 255],
    };
    states.keep(1, state);
    states
}

pub(super) async fn write(h: &Harness, session: SessionId, write: Write) {
    h.ok(build::commit(session, write)).await;
}

pub(super) fn prompt(text: &str) -> InputContent {
    InputContent::Prompt {
        parts: build::text(text),
    }
}

fn failure() -> Failure {
    Failure {
        class: FailureClass::Overloaded,
        message: "busy".into(),
        retry_after_ms: Some(3),
    }
}

pub(super) fn model() -> ModelRef {
    ModelRef {
        provider: "p".into(),
        model: "m".into(),
    }
}

fn media() -> Media {
    Media {
        digest: "d".into(),
        media_type: "image/png".into(),
        size: 1,
        name: None,
    }
}

/// A model call with a tool of the runner's own.
fn ask_with_own_tool() -> Action {
    let Action::CallModel(mut asked) = build::call_model() else {
        unreachable!("it calls a model")
    };
    asked.own_tools.push(ToolDefinition {
        name: "own".into(),
        description: "own".into(),
        input_schema: "{}".into(),
    });
    asked.options.temperature = Some(0.1 + 0.2);
    Action::CallModel(asked)
}

fn own_call(id: &str) -> Vec<Piece> {
    vec![
        Piece::Call {
            id: id.into(),
            tool: "own".into(),
        },
        Piece::CallReady { id: id.into() },
    ]
}

/// A session whose log holds every type of event but an adoption and a cancellation, and which ends in
/// the middle of a call, with inputs pending and a notice owed.
pub(super) async fn eventful(h: &Harness) -> SessionId {
    let session = SessionId::new();
    let said = |text: &str| {
        ItemBody::Assistant(Assistant {
            author: Author::Model(model()),
            content: vec![Content::Text(text.into())],
            ending: Ending::Finished(FinishReason::Stop),
            usage: None,
        })
    };
    let fork = Fork {
        created: SessionCreated {
            agent: "test".into(),
            resume: Resume {
                mode: ResumeMode::Ask,
                max_age_ms: None,
            },
            parent: Some(Parent {
                session: SessionId::new(),
                key: "kid".into(),
                depth: 1,
            }),
            forked: Some(Forked {
                session: SessionId::new(),
                through: 9,
            }),
            ..SessionCreated::default()
        },
        items: vec![
            (build::AT - 2, ItemBody::User(build::text("old"))),
            (build::AT - 1, said("older")),
        ],
        before_context: 1,
        states: kept(),
    };
    write(h, session, Write::Fork(fork)).await;

    // Inputs, and a policy that holds back.
    let go = admit(h, session, Delivery::Queue, prompt("go")).await;
    let input = admit(h, session, Delivery::Queue, prompt("never")).await;
    write(h, session, Write::CancelInput { input }).await;
    let input = admit(h, session, Delivery::Queue, prompt("sooner")).await;
    let delivery = Delivery::Steer;
    write(h, session, Write::Redeliver { input, delivery }).await;
    h.ok(build::interrupt(session)).await;
    write(h, session, Write::Wake { scope: Scope::All }).await;
    h.clock.advance(2 * build::LEASE_MS);
    let fence = build::fence();
    let by_itself = Write::Claim {
        execution: fence.execution,
        owner: fence.owner,
        lease_ms: build::LEASE_MS,
        forced: None,
        resumed: false,
        by_itself: true,
    };
    write(h, session, by_itself).await;
    write(h, session, Write::Release).await;

    // A turn with everything that a step may do.
    let run = Run::begin(h, session).await;
    let promoted = [go, input].map(|input| EventBody::InputPromoted { input });
    run.write([build::turn_started()].into_iter().chain(promoted))
        .await;
    run.write([EventBody::SessionConfigured { model: model() }])
        .await;
    let step = run.step(ask_with_own_tool()).await;
    run.write([EventBody::RetryScheduled {
        step,
        attempt: 1,
        wait_ms: 5,
        failure: failure(),
        usage: None,
    }])
    .await;
    let hosted = ToolCall {
        id: "h".into(),
        tool: "search".into(),
        arguments: "{}".into(),
    };
    let pieces = [
        Piece::Reasoning("hm".into()),
        Piece::Text("so".into()),
        Piece::HostedCall(hosted),
        Piece::HostedResult(HostedResult {
            call: "h".into(),
            is_error: false,
            data: "{}".into(),
        }),
        Piece::ProviderState(ProviderState {
            provider: "provider".into(),
            data: vec![1, 2],
        }),
        Piece::Media(media()),
    ];
    run.write([build::output(step, pieces)]).await;
    let calls = build::call_pieces("c").into_iter();
    let calls = calls.chain(own_call("o1")).chain(own_call("o2"));
    run.write([build::output(step, calls)]).await;
    run.write([
        build::call_held(step, "c"),
        build::model_ended(step, FinishReason::ToolCalls),
    ])
    .await;
    let yes = Approval {
        key: mainstay_core::approval::key(step, "c"),
        approved: true,
        reason: None,
    };
    let answered = mainstay_core::wait::approval_input(session, step, &yes.key);
    write(h, session, Write::Answer(yes)).await;
    run.write([build::call_started(step, "c", Effect::Idempotent, 1)])
        .await;
    run.write([build::call_settled(step, "c")]).await;
    let answer = Answer {
        call: "o1".into(),
        is_error: true,
        output: build::text("no"),
    };
    run.write([
        EventBody::InputPromoted { input: answered },
        EventBody::RunnerAnswered { step, answer },
        EventBody::RunnerSaid {
            runner: "test".into(),
            parts: build::text("said"),
        },
        EventBody::RunnerNoted {
            parts: build::text("noted"),
        },
        EventBody::CallDropped {
            step,
            call: "o2".into(),
        },
    ])
    .await;
    let summary = || Summary::Text("before".into());
    let through = step - 1;
    let compact = Action::Compact(Compact {
        through,
        summary: summary(),
    });
    let step = run.step(compact.clone()).await;
    run.write([EventBody::ContextCompacted {
        step,
        through,
        summary: build::text("before"),
    }])
    .await;
    let step = run.step(compact).await;
    run.write([EventBody::ContextKept {
        step,
        failure: failure(),
    }])
    .await;

    // A child, and a wait that its timer ends.
    let children = ["a", "b"].map(|key| Child {
        key: key.into(),
        agent: None,
        prompt: build::text("work"),
    });
    run.step(Action::Spawn(children.into())).await;
    let notice = h.store.tail(session).await.unwrap().unwrap().session.outbox[0].clone();
    write(h, session, Write::Deliver { notice }).await;
    let until = vec![
        Condition::Signal("never".into()),
        Condition::Time(build::AT + 3_600_000),
        Condition::Children(vec!["a".into()]),
    ];
    run.step(Action::Wait(Wait { until })).await;
    run.end(End::Suspended).await;
    let signal = InputContent::Signal(Signal {
        name: "other".into(),
        data: "{}".into(),
    });
    let signal = admit(h, session, Delivery::Steer, signal).await;
    let run = Run::begin(h, session).await;
    run.write([EventBody::InputPromoted { input: signal }])
        .await;
    run.end(End::Suspended).await;
    h.clock.advance(3_600_000);
    write(h, session, Write::Fire).await;
    let timer = h.store.inputs(session, false).await.unwrap()[0].id;

    // A crash in the middle of calls.
    let run = Run::begin(h, session).await;
    run.write([EventBody::InputPromoted { input: timer }]).await;
    let step = run.step(build::call_tools(&["t1", "t2"])).await;
    run.write([build::call_started(step, "t1", Effect::Once, 1)])
        .await;
    h.crash(session, run.fence).await;
    write(h, session, Write::Release).await;
    let run = Run::begin(h, session).await;
    run.write([build::call_settled(step, "t2"), build::turn_ended()])
        .await;
    run.end(End::Succeeded).await;

    // A turn that fails, one that asks a person, and a claim that nobody can settle.
    let input = admit(h, session, Delivery::Queue, prompt("fail")).await;
    let run = Run::begin(h, session).await;
    let outcome = TurnOutcome::Failed {
        error: "it failed".into(),
    };
    run.write([
        build::turn_started(),
        EventBody::InputPromoted { input },
        EventBody::TurnEnded {
            outcome,
            decided: None,
        },
    ])
    .await;
    let error = "it failed".into();
    run.end(End::Failed { error }).await;
    let input = admit(h, session, Delivery::Queue, prompt("ask")).await;
    let run = Run::begin(h, session).await;
    run.write([build::turn_started(), EventBody::InputPromoted { input }])
        .await;
    let request = ApprovalRequest {
        key: "may I".into(),
        question: "May I?".into(),
        details: None,
    };
    let until = vec![Condition::Approval(request)];
    run.step(Action::Wait(Wait { until })).await;
    run.end(End::Suspended).await;
    let answer = Approval {
        key: "may I".into(),
        approved: true,
        reason: None,
    };
    write(h, session, Write::Answer(answer)).await;
    let input = h.store.inputs(session, false).await.unwrap()[0].id;
    let run = Run::begin(h, session).await;
    run.write([EventBody::InputPromoted { input }, build::turn_ended()])
        .await;
    run.end(End::Succeeded).await;
    let result = InputContent::Child(ChildResult {
        key: "a".into(),
        outcome: ChildOutcome::Done(build::text("worked")),
    });
    let input = admit(h, session, Delivery::Steer, result).await;
    let run = Run::begin(h, session).await;
    run.write([build::turn_started(), EventBody::InputPromoted { input }])
        .await;
    h.clock.advance(build::LEASE_MS);
    let put_aside = Write::Quarantine {
        seen: run.fence,
        reason: "damaged".into(),
    };
    write(h, session, put_aside).await;
    write(h, session, Write::Release).await;
    let run = Run::begin(h, session).await;
    run.write([build::turn_ended()]).await;
    run.end(End::Succeeded).await;

    // A revert that is taken back, and one that is not.
    let revert = async |through| Write::Revert {
        revert: Reverted {
            through,
            context_after: 0,
            states: States::default(),
            signals: None,
        },
        head: h.dump(session).await.session.unwrap().head,
    };
    write(h, session, revert(2).await).await;
    write(h, session, Write::ClearRevert).await;
    write(h, session, revert(3).await).await;
    let input = admit(h, session, Delivery::Queue, prompt("anew")).await;

    // It ends in the middle.
    let run = Run::begin(h, session).await;
    run.write([build::turn_started(), EventBody::InputPromoted { input }])
        .await;
    let step = run.step(build::call_model()).await;
    run.write([build::output(step, build::call_pieces("last"))])
        .await;
    run.write([build::call_started(step, "last", Effect::Once, 1)])
        .await;
    admit(h, session, Delivery::Queue, prompt("later")).await;
    admit(h, session, Delivery::Steer, InputContent::Compact {}).await;
    session
}

pub(super) fn kinds(records: &[Record]) -> BTreeSet<&str> {
    records.iter().map(|record| record.kind.as_str()).collect()
}
