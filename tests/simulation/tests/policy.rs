//! What is recovered, how much of it at once, and what is held back instead.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use mainstay_core::claim::{Fence, Phase};
use mainstay_core::commit::{Append, Commit, End, Reply, Write};
use mainstay_core::coordinator::Terminal;
use mainstay_core::event::{Delivery, EventBody, InputContent, InterruptReason, TurnOutcome};
use mainstay_core::history::{Ending, ItemBody};
use mainstay_core::id::{ExecutionId, InputId, Millis, OwnerId, SessionId};
use mainstay_core::model::Message;
use mainstay_core::plugin::{Condition, LocalEvent, ModelRequest};
use mainstay_core::policy::{HeldBack, Resume, ResumeMode};
use mainstay_core::port::Store as _;
use mainstay_core::project::RuleBroken;
use mainstay_core::tail::{Status, Tail};
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::{Host, Stage, words};
use mainstay_test_simulation::decisions::{Decided, ask, done, wait};
use mainstay_test_simulation::plugins::{call, last_text, results, say};
use mainstay_test_simulation::world::{lines, prompt, user_texts};
use mainstay_test_support::build;

const FOR_EVER_MS: u32 = 4_000_000_000;
const HOUR: Duration = Duration::from_secs(3600);

fn later(after_ms: u32, mut answer: Vec<LocalEvent>) -> Vec<LocalEvent> {
    answer[0].after_ms = after_ms;
    answer
}

/// A model that never answers the first request of a session's prompt, and every later one at once.
fn hangs_once() -> Decided {
    let seen = Mutex::new(HashSet::new());
    Decided::new(move |request, _| {
        let first = seen
            .lock()
            .unwrap()
            .insert(format!("{:?}", request.messages));
        match first {
            true => later(FOR_EVER_MS, say("never")),
            false => say("answered"),
        }
    })
}

fn in_flight(tail: &Tail) -> bool {
    tail.claim.is_some() && tail.step.is_some()
}

async fn status(stage: &Stage, session: SessionId) -> Status {
    stage.tail(session).await.status(stage.now())
}

fn policy(mode: ResumeMode, max_age: Option<Duration>) -> Resume {
    Resume {
        mode,
        max_age_ms: max_age.map(|age| age.as_millis() as Millis),
    }
}

#[tokio::test(start_paused = true)]
async fn recov_9_a_turn_that_continues_asks_with_the_recorded_results() {
    let stage = Stage::new(Decided::new(|request, _| match results(request) {
        0 => call(&[("p", "look", "{}"), ("i", "put", "{}"), ("o", "act", "{}")]),
        _ => say("done"),
    }));
    let _held = stage.plugins.scripted.hold("act");
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    stage
        .when("the calls", || stage.plugins.scripted.count("act") == 1)
        .await;
    // The runner thinks about the results for long, so they are committed before it has.
    stage
        .plugins
        .slow_ms
        .store(u64::from(FOR_EVER_MS), std::sync::atomic::Ordering::SeqCst);
    stage.plugins.scripted.let_go("act");
    let continues = |tail: &Tail| {
        tail.claim
            .as_ref()
            .is_some_and(|claim| claim.phase == Phase::Continue)
    };
    stage
        .until(session, "the phase `continue`", continues)
        .await;
    assert_eq!(stage.count(session, "call.settled").await, 3);
    host.kill();
    stage
        .plugins
        .slow_ms
        .store(0, std::sync::atomic::Ordering::SeqCst);
    let _next = stage.start();
    let dump = stage.idle(session).await;
    for tool in ["look", "put", "act"] {
        assert_eq!(stage.plugins.scripted.count(tool), 1, "{tool} ran again");
    }
    let requests = stage.plugins.scripted.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2);
    let held: Vec<String> = requests[1]
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::ToolResult(result) => Some(result.call.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(held.len(), 3, "{}", lines(&dump));
    let recovered = |body: &ItemBody| matches!(body, ItemBody::Recovered(_));
    assert!(!dump.items.iter().any(|item| recovered(&item.body)));
}

#[tokio::test(start_paused = true)]
async fn recov_14_a_session_that_settles_something_in_each_run_is_never_quarantined() {
    const RUNS: usize = 10;
    for by_calls in [true, false] {
        // Every request hangs the first time; asked again, it goes one call or one answer further.
        let seen = Mutex::new(HashSet::new());
        let stage = Stage::new(
            Decided::new(move |request, _| {
                if seen.lock().unwrap().insert(request.messages.len()) {
                    return later(FOR_EVER_MS, say("never"));
                }
                match results(request) {
                    n if by_calls && n < RUNS => call(&[(format!("c{n}").as_str(), "look", "{}")]),
                    _ => say("done"),
                }
            })
            .agent("other", |n, seen| match n as usize > RUNS {
                true => done().into(),
                false => ask(seen).into(),
            }),
        );
        let mut host = stage.start();
        let agent = if by_calls { "default" } else { "other" };
        let session = stage.create(agent).await;
        host.prompt(session, "go").await;
        for run in 0..=RUNS {
            let hangs = |tail: &Tail| {
                in_flight(tail) && stage.plugins.scripted.request_count() == 2 * run + 1
            };
            let tail = stage.until(session, "a request that hangs", hangs).await;
            assert_eq!(tail.session.attempts, 0);
            host.kill();
            host = stage.start();
        }
        let dump = stage.idle(session).await;
        let called = stage.plugins.scripted.count("look");
        assert_eq!(called, if by_calls { RUNS } else { 0 });
        assert_eq!(stage.count(session, "recovery.recorded").await, RUNS + 1);
        assert_eq!(stage.count(session, "session.quarantined").await, 0);
        let row = dump.session.as_ref().unwrap();
        assert_eq!(row.last_turn, Some(TurnOutcome::Done), "{}", lines(&dump));
    }
}

/// A session whose claim is left in the middle of a model call, written commit by commit. `end` is how
/// the run that held it ended; `resumed` whether recovery had started that run.
async fn left_behind(stage: &Stage, resumed: bool, end: Option<End>) -> SessionId {
    left_behind_at(stage, "go", resumed, end).await
}

/// The same, of a prompt with this text.
async fn left_behind_at(stage: &Stage, text: &str, resumed: bool, end: Option<End>) -> SessionId {
    let session = stage.create("default").await;
    let input = stage.prompt(session, text).await;
    let (execution, owner) = (ExecutionId::new(), OwnerId::new());
    let claim = Write::Claim {
        execution,
        owner,
        lease_ms: 1000,
        forced: None,
        resumed,
        by_itself: false,
    };
    stage.write(session, claim).await.unwrap();
    let append = |events: Vec<EventBody>, end| {
        Write::Append(Append {
            fence: Fence { execution, owner },
            expected_head: None,
            begins: false,
            events: events.into_iter().map(Into::into).collect(),
            end,
        })
    };
    let mut step = build::step_started(build::call_model());
    if let EventBody::StepStarted(step) = &mut step
        && let Some(provider) = &mut step.provider
    {
        provider.digest = "provider-digest".into();
    }
    let events = vec![
        build::turn_started(),
        EventBody::InputPromoted { input },
        step,
    ];
    stage.write(session, append(events, None)).await.unwrap();
    if end.is_some() {
        stage.write(session, append(Vec::new(), end)).await.unwrap();
    }
    session
}

#[tokio::test(start_paused = true)]
async fn recov_17_a_thousand_expired_claims_are_resumed_a_few_at_once() {
    const AT_ONCE: usize = 8;
    let mut stage = Stage::new(Decided::new(|_, _| later(200, say("done"))));
    stage.settings.resume_concurrency = AT_ONCE;
    let shutdown = || {
        Some(End::Interrupted {
            reason: InterruptReason::Shutdown,
        })
    };
    let (mut all, mut first_kill, mut second_kill) = (Vec::new(), HashSet::new(), HashSet::new());
    for n in 0..1000 {
        let session = match n {
            // Among the others, so that those are running when these come up.
            400..410 => left_behind(&stage, false, None).await,
            500..510 => left_behind(&stage, true, None).await,
            _ => left_behind(&stage, false, shutdown()).await,
        };
        match n {
            400..410 => drop(first_kill.insert(session)),
            500..510 => drop(second_kill.insert(session)),
            _ => {}
        }
        all.push(session);
    }
    stage.memory.restart();
    stage.memory.take_log();
    let _host = stage.start();
    for session in &all {
        stage.idle(*session).await;
    }

    let mut running: HashMap<SessionId, ExecutionId> = HashMap::new();
    let (mut most, mut most_first) = (0, 0);
    let mut starts = Vec::new();
    for logged in stage.memory.log() {
        let session = logged.commit.session;
        if let Reply::Claimed(claim) = &logged.reply {
            assert!(claim.resumed);
            running.insert(session, claim.execution);
            starts.push(logged.commit.at);
        } else if logged.claim.is_none() {
            running.remove(&session);
        }
        let of = |sessions: &HashSet<SessionId>| {
            running
                .keys()
                .filter(|session| sessions.contains(session))
                .count()
        };
        most = most.max(running.len());
        most_first = most_first.max(of(&first_kill));
        assert!(
            of(&second_kill) <= 1,
            "two that crashed a recovery run at once"
        );
    }
    assert_eq!(most, AT_ONCE);
    assert!(most_first > 1, "those of a first kill run one at a time");
    assert_eq!(starts.len(), 1000);
    // The first of them might all have begun at the same instant.
    let first: HashSet<&Millis> = starts[..AT_ONCE].iter().collect();
    assert!(
        first.len() > AT_ONCE / 2,
        "not spread: {:?}",
        &starts[..AT_ONCE]
    );
    for session in &all {
        let row = stage.tail(*session).await;
        assert_eq!(row.session.last_turn, Some(TurnOutcome::Done));
    }
}

/// A node that stops waits for no turn of what it has not begun to resume.
#[tokio::test(start_paused = true)]
async fn recov_17_a_shutdown_waits_for_none_that_would_be_resumed() {
    let mut stage = Stage::new(Decided::new(|_, _| later(600_000, say("done"))));
    stage.settings.resume_concurrency = 1;
    let mut all = Vec::new();
    for _ in 0..200 {
        all.push(left_behind(&stage, true, None).await);
    }
    stage.memory.restart();
    stage.memory.take_log();
    let host = stage.start();
    let claims = |wanted: usize| {
        let log = stage.memory.log();
        let claims = log
            .iter()
            .filter(|logged| matches!(logged.reply, Reply::Claimed(_)));
        claims.count() == wanted
    };
    stage.when("the first to be resumed", || claims(1)).await;
    host.node.shutdown_now();
    let stopped = tokio::time::timeout(Duration::from_secs(1), host.node.shutdown());
    stopped.await.expect("it stops without their turns");
    assert!(claims(1));
    for session in &all {
        let tail = stage.tail(*session).await;
        assert!(tail.session.turn.is_some(), "another takes it");
    }
}

#[tokio::test(start_paused = true)]
async fn recov_17_a_run_that_a_recovery_owed_is_its_run_after_another_kill_too() {
    // Two sessions have crashed a run that recovery had started; the host dies before it runs them.
    let mut stage = Stage::new(Decided::new(|_, n| match n {
        0..4 => later(FOR_EVER_MS, say("never")),
        _ => later(200, say("done")),
    }));
    stage.settings.max_attempts = 9;
    let mut host = stage.start();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        sessions.push(session);
    }
    for requests in [2, 4] {
        stage
            .when("the requests", || {
                stage.plugins.scripted.request_count() == requests
            })
            .await;
        host.kill();
        host = match requests {
            2 => stage.start(),
            _ => stage.start_with(Box::new(|commit, _| match commit.write {
                Write::Claim { .. } => Fate::DieBefore,
                _ => Fate::Pass,
            })),
        };
    }
    host.link.died().await;
    host.kill();
    for session in &sessions {
        assert!(
            stage.tail(*session).await.claim.is_none(),
            "not recovered yet"
        );
    }
    stage.memory.take_log();
    let _host = stage.start();
    let mut running = HashSet::new();
    for session in &sessions {
        stage.idle(*session).await;
    }
    for logged in stage.memory.log() {
        if let Reply::Claimed(claim) = &logged.reply {
            assert!(claim.resumed);
            running.insert(logged.commit.session);
        } else if logged.claim.is_none() {
            running.remove(&logged.commit.session);
        }
        assert!(
            running.len() <= 1,
            "two that crashed a recovery run at once"
        );
    }
}

/// A host that resumes one session at a time, and one that is resumed: its model calls a tool where
/// `settles`, and never answers after that.
async fn one_is_resumed(suspect: bool, settles: bool) -> (Stage, Host, SessionId) {
    let mut stage = Stage::new(Decided::new(move |request, _| {
        match (last_text(request).as_str(), results(request)) {
            ("long", 0) if settles => call(&[("c", "look", "{}")]),
            ("long", _) | (_, 1..) => later(FOR_EVER_MS, say("never")),
            _ => say("done"),
        }
    }));
    stage.settings.resume_concurrency = 1;
    let long = left_behind_at(&stage, "long", suspect, None).await;
    stage.memory.restart();
    let host = stage.start();
    let resumed = |tail: &Tail| tail.claim.as_ref().is_some_and(|claim| claim.resumed);
    stage.until(long, "its run", resumed).await;
    (stage, host, long)
}

#[tokio::test(start_paused = true)]
async fn recov_17_a_client_waits_for_no_turn_among_what_is_resumed() {
    for suspect in [false, true] {
        let (stage, host, _) = one_is_resumed(suspect, false).await;
        let mut sessions = Vec::new();
        for _ in 0..4 {
            sessions.push(left_behind(&stage, suspect, None).await);
        }
        tokio::time::sleep(HOUR).await;
        for session in &sessions {
            let tail = stage.tail(*session).await;
            assert!(tail.claim.is_none() && tail.is_runnable(), "{tail:?}");
        }
        host.prompt(sessions[0], "more").await;
        host.node.resume(sessions[1]).await.unwrap();
        let run = host.node.run(sessions[2], None).await.unwrap();
        assert_eq!(run.terminal, Some(Terminal::Succeeded));
        for session in &sessions[..3] {
            stage.idle(*session).await;
        }
        let last = stage.tail(sessions[3]).await;
        assert!(last.claim.is_none() && last.is_runnable(), "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn recov_17_a_session_that_is_resumed_holds_its_place_to_its_end() {
    for suspect in [false, true] {
        let (stage, host, long) = one_is_resumed(suspect, true).await;
        let next = left_behind(&stage, suspect, None).await;
        tokio::time::sleep(HOUR).await;
        let tail = stage.tail(next).await;
        assert!(tail.claim.is_none() && tail.is_runnable(), "{tail:?}");
        let settled = stage.count(long, "call.settled").await;
        assert_eq!(settled, 1, "the one that is resumed has come further");
        drop(host);
    }
}

fn broken() -> mainstay_core::commit::Refused {
    RuleBroken {
        seq: 7,
        kind: "step.recovered".into(),
        rule: "the row is not what the event says".into(),
    }
    .into()
}

#[tokio::test(start_paused = true)]
async fn recov_18_a_recovery_that_does_not_fit_puts_the_session_aside() {
    let stage = Stage::new(hangs_once());
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    stage.until(session, "the request", in_flight).await;
    host.kill();
    let host = stage.start_with(Box::new(|commit, _| match commit.write {
        Write::Recover { .. } => Fate::Refuse(broken()),
        _ => Fate::Pass,
    }));
    let aside = |tail: &Tail| tail.session.quarantined.is_some();
    let tail = stage.until(session, "quarantine", aside).await;
    let reason = tail.session.quarantined.clone().unwrap();
    assert!(
        reason.contains("the row is not what the event says"),
        "{reason}"
    );
    assert!(tail.claim.is_none());
    assert_eq!(status(&stage, session).await, Status::Quarantined);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(stage.plugins.scripted.request_count(), 1);
    assert_eq!(stage.count(session, "step.recovered").await, 0);
    host.kill();
}

#[tokio::test(start_paused = true)]
async fn recov_18_a_scanner_that_lost_the_claim_meanwhile_writes_nothing() {
    let stage = Stage::new(hangs_once());
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let seen = stage
        .until(session, "the request", in_flight)
        .await
        .claim
        .clone()
        .unwrap();
    host.kill();
    // While this one fails at it, another node has settled the claim.
    let memory = std::sync::Arc::clone(&stage.memory);
    let at = stage.now();
    let refused = std::sync::Arc::new(Mutex::new(Vec::new()));
    let quarantines = std::sync::Arc::clone(&refused);
    let host = stage.start_with(Box::new(move |commit, _| match &commit.write {
        Write::Recover { .. } => {
            let fence = Fence {
                execution: seen.execution,
                owner: seen.owner,
            };
            let other = Commit {
                at,
                ..build::recover(session, fence)
            };
            // In memory a commit is done at its first poll.
            let done = futures::FutureExt::now_or_never(memory.commit(other));
            let _ = done.expect("the store in memory never waits");
            Fate::Refuse(broken())
        }
        Write::Quarantine { .. } => {
            let before = futures::FutureExt::now_or_never(memory.dump(session));
            quarantines
                .lock()
                .unwrap()
                .push(before.unwrap().unwrap().events.len());
            Fate::Pass
        }
        _ => Fate::Pass,
    }));
    let dump = stage.idle(session).await;
    assert_eq!(
        refused.lock().unwrap().len(),
        1,
        "it tried to put the session aside"
    );
    assert_eq!(stage.count(session, "session.quarantined").await, 0);
    assert_eq!(
        stage.count(session, "recovery.recorded").await,
        1,
        "{}",
        lines(&dump)
    );
    assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    host.kill();
}

/// What a held back session shows.
async fn held(stage: &Stage, session: SessionId, reason: HeldBack) {
    let tail = stage
        .until(session, "the hold", |tail| tail.session.held.is_some())
        .await;
    assert_eq!(tail.session.held, Some(reason));
    assert!(tail.claim.is_none());
    assert_eq!(tail.status(stage.now()), Status::Held);
    assert!(
        tail.may_run()
            .unwrap_err()
            .to_string()
            .contains("resume it")
    );
}

#[tokio::test(start_paused = true)]
async fn recov_19_after_half_a_day_each_policy_does_what_it_says() {
    let stage = Stage::new(hangs_once());
    let host = stage.start();
    let mut sessions = Vec::new();
    for (name, resume, reason) in [
        ("auto", policy(ResumeMode::Auto, None), None),
        ("ask", policy(ResumeMode::Ask, None), Some(HeldBack::Ask)),
        (
            "never",
            policy(ResumeMode::Never, None),
            Some(HeldBack::Never),
        ),
        (
            "aged",
            policy(ResumeMode::Auto, Some(8 * HOUR)),
            Some(HeldBack::Age),
        ),
    ] {
        let session = stage.create_with("default", resume).await;
        host.prompt(session, name).await;
        stage.until(session, "the request", in_flight).await;
        sessions.push((session, name, reason));
    }
    host.kill();
    tokio::time::advance(12 * HOUR).await;
    let host = stage.start();
    stage.idle(sessions[0].0).await;
    for (session, _, reason) in &sessions[1..] {
        held(&stage, *session, reason.unwrap()).await;
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(
        stage.plugins.scripted.request_count(),
        5,
        "one of the held ran"
    );
    host.kill();
    let host = stage.start();
    tokio::time::sleep(Duration::from_secs(600)).await;
    for (session, name, _) in &sessions[1..] {
        assert_eq!(status(&stage, *session).await, Status::Held);
        host.node.resume(*session).await.unwrap();
        let dump = stage.idle(*session).await;
        assert_eq!(user_texts(&dump), [*name]);
        let row = dump.session.as_ref().unwrap();
        assert_eq!(row.last_turn, Some(TurnOutcome::Done), "{}", lines(&dump));
        assert_eq!(row.held, None);
        assert_eq!(stage.count(*session, "session.held").await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn recov_25_a_day_without_a_writer_makes_auto_ask() {
    let stage = Stage::new(hangs_once());
    let host = stage.start();
    let older = stage.create("default").await;
    host.prompt(older, "older").await;
    stage.until(older, "the request", in_flight).await;
    // It runs on, and writes nothing.
    tokio::time::sleep(2 * HOUR).await;
    let newer = stage.create("default").await;
    host.prompt(newer, "newer").await;
    stage.until(newer, "the request", in_flight).await;
    host.kill();
    tokio::time::advance(23 * HOUR - Duration::from_secs(60)).await;
    let host = stage.start();
    let dump = stage.idle(newer).await;
    assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    held(&stage, older, HeldBack::Age).await;
    host.node.resume(older).await.unwrap();
    let dump = stage.idle(older).await;
    assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    assert_eq!(stage.count(newer, "session.held").await, 0);
}

#[tokio::test(start_paused = true)]
async fn recov_26_ask_and_never_hold_back_what_would_start_by_itself() {
    for (mode, reason) in [
        (ResumeMode::Ask, HeldBack::Ask),
        (ResumeMode::Never, HeldBack::Never),
    ] {
        let stage = Stage::new(Decided::new(|_, _| say("answered")).agent(
            "other",
            |n, seen| match n {
                0 => wait([Condition::Time(seen.now + 60_000)]).into(),
                _ => done().into(),
            },
        ));
        let host = stage.start();
        let prompted = stage.create_with("default", policy(mode, None)).await;
        let timed = stage.create_with("other", policy(mode, None)).await;
        // A client asks for the turn that waits: that is no start by itself.
        host.prompt(timed, "wait a minute").await;
        stage.waiting(timed).await;
        host.kill();
        let input = stage.prompt(prompted, "go").await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        let mut host = stage.start();
        for _ in 0..2 {
            held(&stage, prompted, reason).await;
            held(&stage, timed, reason).await;
            tokio::time::sleep(Duration::from_secs(300)).await;
            host.kill();
            host = stage.start();
        }
        assert_eq!(stage.plugins.asked(), 1, "one of them ran");
        // What is held back can be seen.
        let pending = stage.memory.inputs(prompted, false).await.unwrap();
        assert_eq!(pending.len(), 1);
        assert_eq!(pending[0].id, input);
        assert_eq!(pending[0].intent, mode == ResumeMode::Ask);
        let pending = stage.memory.inputs(timed, false).await.unwrap();
        assert_eq!(pending.len(), 1);
        assert!(matches!(pending[0].content, InputContent::Timer { .. }));
        assert_eq!(stage.tail(timed).await.session.wake_at(), None);

        for session in [prompted, timed] {
            host.node.resume(session).await.unwrap();
            let dump = stage.idle(session).await;
            let row = dump.session.as_ref().unwrap();
            assert_eq!(row.last_turn, Some(TurnOutcome::Done), "{}", lines(&dump));
            tokio::time::sleep(Duration::from_secs(120)).await;
            assert_eq!(stage.count(session, "turn.ended").await, 1);
        }
        let dump = stage.idle(timed).await;
        assert_eq!(words(&dump.items), ["user wait a minute", "timer"]);
        stage.check_family(timed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn recov_26_a_wait_longer_than_the_maximum_age_still_ends_by_its_timer() {
    let stage = Stage::new(Decided::new(|_, _| say("unused")).agent(
        "default",
        |n, seen| match n {
            0 => wait([Condition::Time(seen.now + 72 * 3_600_000)]).into(),
            _ => done().into(),
        },
    ));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "see you on Thursday").await;
    stage.waiting(session).await;
    host.kill();
    tokio::time::advance(80 * HOUR).await;
    let _next = stage.start();
    let dump = stage.idle(session).await;
    assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    assert_eq!(stage.count(session, "session.held").await, 0);
}

#[tokio::test(start_paused = true)]
async fn recov_26_a_prompt_beside_a_hold_says_so_and_goes_with_the_resume() {
    let stage = Stage::new(hangs_once());
    let host = stage.start();
    let session = stage
        .create_with("default", policy(ResumeMode::Ask, None))
        .await;
    host.prompt(session, "go").await;
    stage.until(session, "the request", in_flight).await;
    host.kill();
    let host = stage.start();
    held(&stage, session, HeldBack::Ask).await;
    let input = InputId::new();
    let admission = host
        .node
        .admit(session, input, Delivery::Queue, prompt("more"))
        .await
        .unwrap();
    let told = admission.held.expect("it says that it is held back");
    assert!(told.contains("`ask`"), "{told}");
    host.node.resume(session).await.unwrap();
    stage
        .until(session, "the second prompt's request", |tail| {
            tail.inputs.is_empty() && in_flight(tail)
        })
        .await;
    assert_eq!(user_texts(&stage.dump(session).await), ["go", "more"]);
}

#[tokio::test(start_paused = true)]
async fn recov_27_a_call_that_settles_leaves_no_attempt_over() {
    let stage = Stage::new(Decided::new(|request, _| match results(request) {
        0 => call(&[("a", "put", "{}"), ("b", "put", "{}"), ("c", "put", "{}")]),
        _ => say("done"),
    }));
    let mut gate = stage.plugins.scripted.hold("put");
    let mut host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    for settled in 1..=3_usize {
        // Those without a result are in flight (again).
        stage
            .when("the calls", || {
                let called = [0, 3, 5, 6][settled];
                stage.plugins.scripted.count("put") == called
            })
            .await;
        let before = stage.tail(session).await.session.attempts;
        assert_eq!(before, u32::from(settled > 1), "of the kill before alone");
        gate.notify_one();
        if settled < 3 {
            let counts = |tail: &Tail| {
                tail.step.as_ref().is_some_and(|step| {
                    let results = step.calls.iter().filter(|call| call.result.is_some());
                    results.count() == settled
                })
            };
            let tail = stage.until(session, "one more result", counts).await;
            assert_eq!(tail.session.attempts, 0);
            host.kill();
            stage.plugins.scripted.let_go("put");
            gate = stage.plugins.scripted.hold("put");
            host = stage.start();
        }
    }
    let dump = stage.idle(session).await;
    assert_eq!(stage.count(session, "call.settled").await, 3);
    assert_eq!(
        stage.count(session, "session.quarantined").await,
        0,
        "{}",
        lines(&dump)
    );
    host.kill();
}

#[tokio::test(start_paused = true)]
async fn recov_27_chunks_settle_nothing_and_end_in_quarantine() {
    let stage = Stage::new(Decided::new(|_: &ModelRequest, _| {
        let mut answer = say("a little more");
        answer[1].after_ms = FOR_EVER_MS;
        answer
    }));
    let mut host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    for run in 1..=4_usize {
        let chunk = |tail: &Tail| {
            stage.plugins.scripted.request_count() == run
                && tail
                    .step
                    .as_ref()
                    .is_some_and(|step| !step.content.is_empty())
        };
        stage.until(session, "a chunk", chunk).await;
        assert_eq!(stage.count(session, "step.output").await, run);
        host.kill();
        host = stage.start();
    }
    let aside = |tail: &Tail| tail.session.quarantined.is_some();
    let tail = stage.until(session, "quarantine", aside).await;
    assert_eq!(tail.session.attempts, 4);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        stage.plugins.scripted.request_count(),
        4,
        "one run and three resumes"
    );
    let dump = stage.dump(session).await;
    mainstay_test_simulation::invariant::check(&dump);
    let kept = dump.items.iter().filter(|item| {
        matches!(&item.body, ItemBody::Assistant(said) if said.ending == Ending::Interrupted)
    });
    assert_eq!(kept.count(), 4);
    host.kill();
}
