//! Nodes: how much each takes, what it leaves to others, what it tells of itself, and a step whose
//! components are gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::bound::Missing;
use mainstay_core::commit::{Reply, Write};
use mainstay_core::coordinator::Terminal;
use mainstay_core::event::Delivery;
use mainstay_core::id::{OwnerId, SessionId};
use mainstay_core::nodes::{DrainError, NodeRow, NodeState};
use mainstay_core::plugin::{Kind, LocalEvent};
use mainstay_core::policy::{Resume, ResumeMode};
use mainstay_core::port::Store as _;
use mainstay_core::tail::{Scope, Tail};
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::{Host, Stage};
use mainstay_test_simulation::plugins::{last_text, say};
use mainstay_test_simulation::world::{prompt, user_texts};
use tokio::sync::Notify;

fn later(after_ms: u32, mut answer: Vec<LocalEvent>) -> Vec<LocalEvent> {
    answer[0].after_ms = after_ms;
    answer
}

/// Sessions that each node ran, and how many it ran at once at most.
fn ran(stage: &Stage) -> HashMap<OwnerId, (usize, usize)> {
    let mut running: HashMap<SessionId, OwnerId> = HashMap::new();
    let mut ran: HashMap<OwnerId, (usize, usize)> = HashMap::new();
    for logged in stage.memory.log() {
        let session = logged.commit.session;
        if let Reply::Claimed(claim) = &logged.reply {
            running.insert(session, claim.owner);
            let (all, most) = ran.entry(claim.owner).or_default();
            *all += 1;
            let now = running.values().filter(|owner| **owner == claim.owner);
            *most = now.count().max(*most);
        } else if logged.claim.is_none() {
            running.remove(&session);
        }
    }
    ran
}

async fn row(stage: &Stage, owner: OwnerId) -> Option<(NodeRow, NodeState)> {
    let (nodes, now) = stage.memory.nodes().await.unwrap();
    let row = nodes.into_iter().find(|row| row.identity.owner == owner)?;
    let state = row.state(now);
    Some((row, state))
}

/// Waits until the node's row is as wanted.
async fn told(stage: &Stage, owner: OwnerId, wanted: impl Fn(&NodeRow, NodeState) -> bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(600);
    loop {
        let row = row(stage, owner).await;
        if row.as_ref().is_some_and(|(row, state)| wanted(row, *state)) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{row:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Twelve prompts, all admitted at this node.
async fn twelve(stage: &Stage, host: &Host) -> Vec<SessionId> {
    let mut sessions = Vec::new();
    for _ in 0..12 {
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        sessions.push(session);
    }
    sessions
}

#[tokio::test(start_paused = true)]
async fn a_node_at_its_capacity_claims_nothing() {
    let mut stage = Stage::new(Decided::new(|_, _| later(20_000, say("done"))));
    stage.settings.capacity = 2;
    let host = stage.start();
    let sessions = twelve(&stage, &host).await;
    told(&stage, host.node.owner(), |row, _| row.load == 2).await;
    assert!(host.node.pulse().full);
    // It is behind and well: its loop goes on looking.
    tokio::time::sleep(std::time::Duration::from_secs(40)).await;
    assert!(host.node.pulse().looked_ms < 2_000);
    for session in &sessions {
        stage.idle(*session).await;
    }
    assert_eq!(ran(&stage)[&host.node.owner()], (12, 2));
    assert!(!host.node.pulse().full);
}

#[tokio::test(start_paused = true)]
async fn what_a_full_node_admits_runs_at_one_that_has_places() {
    let mut stage = Stage::new(Decided::new(|_, _| later(20_000, say("done"))));
    stage.settings.capacity = 2;
    let full = stage.start();
    stage.settings.capacity = 8;
    let free = stage.start();
    let sessions = twelve(&stage, &full).await;
    for session in &sessions {
        stage.idle(*session).await;
    }
    let ran = ran(&stage);
    let (all, most) = ran[&full.node.owner()];
    assert_eq!(most, 2);
    let (others, at_once) = ran[&free.node.owner()];
    assert!(others > all, "{ran:?}");
    assert!(at_once <= 8, "{ran:?}");
    assert_eq!(all + others, 12);
}

/// What a client asks for does not start by itself, whichever node comes to it.
#[tokio::test(start_paused = true)]
async fn recov_26_a_prompt_at_a_full_node_is_no_start_by_itself_of_another() {
    for mode in [ResumeMode::Ask, ResumeMode::Never] {
        let mut stage = Stage::new(Decided::new(|request, _| {
            match last_text(request).as_str() {
                "long" => later(3_600_000, say("late")),
                _ => say("done"),
            }
        }));
        stage.settings.capacity = 1;
        let full = stage.start();
        let long = stage.create("default").await;
        full.prompt(long, "long").await;
        told(&stage, full.node.owner(), |row, _| row.load == 1).await;
        let resume = Resume {
            mode,
            max_age_ms: None,
        };
        let session = stage.create_with("default", resume).await;
        let input = full.prompt(session, "go").await;
        // Later than a lease.
        tokio::time::sleep(2 * stage.settings.lease).await;
        let free = stage.start();
        if mode == ResumeMode::Never {
            // An interrupt takes the wish back, and a wake gives it again.
            full.node.interrupt(session).await.unwrap();
            full.node.wake(session, Scope::All).await.unwrap();
        }
        let dump = stage.idle(session).await;
        assert_eq!(user_texts(&dump), ["go"], "{input}");
        assert_eq!(stage.count(session, "session.held").await, 0);
        assert_eq!(ran(&stage)[&free.node.owner()].0, 1);
    }
}

/// An interrupt of a session that waits for a place takes what it was to run, and nothing admitted later.
#[tokio::test(start_paused = true)]
async fn a_session_is_interrupted_while_it_waits_for_a_place() {
    let mut stage = Stage::new(Decided::new(|_, _| later(20_000, say("done"))));
    stage.settings.capacity = 1;
    let host = stage.start();
    let (first, second) = (stage.create("default").await, stage.create("default").await);
    host.prompt(first, "go").await;
    told(&stage, host.node.owner(), |row, _| row.load == 1).await;
    host.prompt(second, "not this").await;
    let forced = stage.create("default").await;
    let mut run = Box::pin(host.node.run(forced, Some(3)));
    assert!(futures::poll!(&mut run).is_pending(), "it waits");
    for session in [second, forced] {
        host.node.interrupt(session).await.unwrap();
    }
    stage.idle(first).await;
    stage.idle(second).await;
    assert!(!run.await.unwrap().ran);
    for session in [second, forced] {
        assert_eq!(stage.count(session, "execution.started").await, 0);
    }
    host.prompt(first, "again").await;
    host.steer(second, "but this").await;
    stage.idle(first).await;
    let dump = stage.idle(second).await;
    assert_eq!(
        dump.session.unwrap().last_turn,
        Some(mainstay_core::event::TurnOutcome::Done)
    );
}

#[tokio::test(start_paused = true)]
async fn node_7_a_node_tells_of_its_start_and_its_end() {
    let stage = Stage::new(Decided::new(|_, _| say("done")));
    let (stopped, killed) = (stage.start(), stage.start());
    let (a, b) = (stopped.node.owner(), killed.node.owner());
    for owner in [a, b] {
        told(&stage, owner, |_, state| state == NodeState::Live).await;
    }
    // Idle for long, it still tells of itself within its lease.
    for _ in 0..100 {
        tokio::time::sleep(std::time::Duration::from_secs(7)).await;
        assert_eq!(row(&stage, a).await.unwrap().1, NodeState::Live);
    }
    stopped.node.shutdown().await;
    assert_eq!(row(&stage, a).await.unwrap().1, NodeState::Stopped);
    killed.kill();
    let (last, state) = row(&stage, b).await.unwrap();
    assert_eq!((state, last.stopped_at), (NodeState::Live, None));
    tokio::time::sleep(stage.settings.lease).await;
    assert_eq!(row(&stage, b).await.unwrap().1, NodeState::Gone);

    // A day later a start removes both rows.
    tokio::time::sleep(std::time::Duration::from_secs(25 * 3600)).await;
    let next = stage.start();
    told(&stage, next.node.owner(), |_, state| {
        state == NodeState::Live
    })
    .await;
    stage.idle(stage.create("default").await).await;
    let (nodes, _) = stage.memory.nodes().await.unwrap();
    assert_eq!(nodes.len(), 1, "{nodes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_is_asked_to_drain_through_another() {
    let stage = Stage::new(Decided::new(|_, _| say("done")));
    let (a, b) = (stage.start(), stage.start());
    for host in [&a, &b] {
        told(&stage, host.node.owner(), |_, state| {
            state == NodeState::Live
        })
        .await;
    }
    let own = a.node.owner();
    b.node.drain(own).await.unwrap();
    assert!(matches!(
        b.node.drain(own).await,
        Err(DrainError::Draining(_))
    ));
    // It is idle: it hears of it all the same.
    let heard = tokio::time::timeout(stage.settings.lease, a.node.drain_asked());
    heard.await.expect("within its lease");
    a.node.shutdown().await;
    assert!(matches!(
        b.node.drain(own).await,
        Err(DrainError::Stopped(_))
    ));
    let unknown = OwnerId::new();
    assert!(matches!(
        b.node.drain(unknown).await,
        Err(DrainError::Unknown(_))
    ));
    // One that is asked itself need not wait for a renewal.
    b.node.drain(b.node.owner()).await.unwrap();
    b.node.drain_asked().await;
    let gone = stage.start();
    let of_it = gone.node.owner();
    told(&stage, of_it, |_, state| state == NodeState::Live).await;
    gone.kill();
    tokio::time::sleep(stage.settings.lease).await;
    assert!(matches!(
        b.node.drain(of_it).await,
        Err(DrainError::Gone(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn node_6_a_step_whose_component_is_gone_waits_for_it_and_nothing_is_counted() {
    const PROVIDER: &str = "provider-digest";
    let mut stage = Stage::new(Decided::new(|_, n| match n {
        0 => later(4_000_000_000, say("never")),
        _ => say("answered"),
    }));
    stage.settings.capacity = 1;
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    stage
        .until(session, "a step in flight", |tail| {
            tail.claim.is_some() && tail.step.is_some()
        })
        .await;
    host.node.shutdown().await;
    stage.plugins.gone.lock().unwrap().insert(PROVIDER.into());

    let host = stage.start();
    let settled = |tail: &mainstay_core::tail::Tail| tail.claim.is_none();
    let before = stage.until(session, "its recovery", settled).await;
    // Neither the loop, nor a client, nor a steer claims it.
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    assert!(!host.node.run(session, None).await.unwrap().ran);
    host.send(session, Delivery::Steer, prompt("and this"))
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    let tail = stage.tail(session).await;
    assert_eq!(tail.claim, None);
    assert_eq!(tail.session.attempts, 0);
    assert_eq!(
        tail.session.head,
        before.session.head + 1,
        "the steer alone"
    );
    assert_eq!(stage.count(session, "execution.started").await, 1);
    let missing = Missing {
        digest: PROVIDER.into(),
        kind: Kind::Provider,
        alias: tail
            .step
            .as_ref()
            .unwrap()
            .started
            .provider
            .as_ref()
            .unwrap()
            .alias
            .clone(),
    };
    assert_eq!(host.node.missing(&tail).await, [missing]);
    // It takes no place from others.
    let other = stage.create("default").await;
    stage.prompt(other, "run by the loop").await;
    let turn = stage.until(other, "a step of its own", |tail| {
        tail.step.is_some() || tail.session.last_turn.is_some()
    });
    turn.await;

    stage.plugins.gone.lock().unwrap().clear();
    let dump = stage.idle(session).await;
    let asked: HashSet<&str> = dump
        .steps
        .iter()
        .filter_map(|step| step.provider.as_ref())
        .map(String::as_str)
        .collect();
    assert_eq!(asked, HashSet::from([PROVIDER]));
    assert_eq!(dump.session.unwrap().attempts, 0);
    assert_eq!(host.node.missing(&*stage.tail(session).await).await, []);
}

/// The model of these sessions never answers, so that nothing but a recovery changes their attempts.
fn stuck() -> Decided {
    Decided::new(|_, _| later(3_600_000, say("never")))
}

#[tokio::test(start_paused = true)]
async fn recov_15_ten_lost_leases_of_a_living_process_are_no_attempts() {
    let stage = Stage::new(stuck());
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let claimed = |tail: &Tail| {
        tail.claim
            .as_ref()
            .is_some_and(|claim| claim.step.is_some())
    };
    for _ in 0..10 {
        let tail = stage.until(session, "a run", claimed).await;
        let execution = tail.claim.as_ref().unwrap().execution;
        host.link.mute(true);
        let settled = |tail: &Tail| tail.claim.as_ref().is_none_or(|c| c.execution != execution);
        let tail = stage.until(session, "its recovery", settled).await;
        assert_eq!(tail.session.attempts, 0);
        assert_eq!(tail.session.quarantined, None);
        host.link.mute(false);
    }
    stage.until(session, "the next run", claimed).await;
    assert_eq!(stage.count(session, "execution.interrupted").await, 10);
}

#[tokio::test(start_paused = true)]
async fn recov_15_a_lease_that_only_a_refused_write_tells_of_is_no_attempt() {
    let mut stage = Stage::new(Decided::new(|_, n| match n {
        0 => later(20_000, say("late")),
        _ => say("done"),
    }));
    // Nothing is renewed meanwhile, and the node's own watch over its leases is not there yet either.
    stage.settings.lease = Duration::from_secs(600);
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let streams = |tail: &Tail| tail.step.is_some();
    stage.until(session, "a request", streams).await;
    stage.memory.restart();
    // It hears so with its answer's commit, and not before.
    let recovered = |tail: &Tail| {
        assert_eq!(tail.session.attempts, 0, "{tail:?}");
        tail.claim.is_none() && tail.session.turn.is_none()
    };
    stage.until(session, "the end", recovered).await;
    assert_eq!(stage.count(session, "execution.interrupted").await, 1);
}

#[tokio::test(start_paused = true)]
async fn recov_15_a_charge_is_void_once_its_owner_is_seen_alive_after_it() {
    for returns in [true, false] {
        let stage = Stage::new(stuck());
        let first = stage.start();
        let session = stage.create("default").await;
        first.prompt(session, "go").await;
        let run_by = |host: &Host| {
            let owner = host.node.owner();
            move |tail: &Tail| {
                tail.claim
                    .as_ref()
                    .is_some_and(|claim| claim.owner == owner)
            }
        };
        stage.until(session, "a run", run_by(&first)).await;
        // The first stands still for longer than its lease; the second recovers.
        first.link.stop(true);
        let second = stage.start();
        let tail = stage
            .until(session, "a run elsewhere", run_by(&second))
            .await;
        assert_eq!(tail.session.attempts, 1);
        let charge = tail.session.charges[0];
        assert_eq!(charge.owner, first.node.owner());
        if returns {
            first.link.stop(false);
            let seen = async || {
                let (rows, _) = stage.memory.nodes().await.unwrap();
                let mut rows = rows.into_iter();
                let row = rows.find(|row| row.identity.owner == charge.owner);
                row.is_some_and(|row| row.seen_at > charge.at)
            };
            let renewed = async {
                while !seen().await {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            let patience = Duration::from_secs(3600);
            tokio::time::timeout(patience, renewed)
                .await
                .expect("a renewal");
        } else {
            first.vanish();
        }
        // Then the second dies for good.
        second.vanish();
        let third = stage.start();
        let settled = |tail: &Tail| {
            let charges = &tail.session.charges;
            charges
                .last()
                .is_some_and(|last| last.owner != charge.owner)
        };
        let tail = stage.until(session, "the next recovery", settled).await;
        let counted = if returns { 1 } else { 2 };
        assert_eq!(tail.session.attempts, counted, "returned: {returns}");
        assert_eq!(tail.session.charges.len() as u32, counted);
        drop(third);
    }
}

/// Whether a wake has been stored.
fn woken(stage: &Stage) -> bool {
    let log = stage.memory.log();
    log.iter()
        .any(|logged| matches!(logged.commit.write, Write::Wake { .. }))
}

#[tokio::test(start_paused = true)]
async fn coord_1_a_run_asked_of_another_node_gets_the_outcome_too() {
    let stage = Stage::new(Decided::new(|_, _| later(5_000, say("done"))));
    let (here, there) = (stage.start(), stage.start());
    let session = stage.create("default").await;
    here.prompt(session, "go").await;
    let in_flight = |tail: &Tail| tail.claim.is_some() && tail.step.is_some();
    stage.until(session, "the step", in_flight).await;
    let owner = stage.tail(session).await.claim.as_ref().unwrap().owner;
    assert_eq!(owner, here.node.owner());
    let outcome = there.node.run(session, None).await.unwrap();
    assert!(outcome.ran);
    assert_eq!(outcome.terminal, Some(Terminal::Succeeded));
    stage.idle(session).await;
    assert_eq!(stage.count(session, "execution.started").await, 1);
    // With nothing pending and nothing running it does nothing.
    let outcome = there.node.run(session, None).await.unwrap();
    assert_eq!((outcome.ran, outcome.terminal), (false, None));
}

#[tokio::test(start_paused = true)]
async fn coord_1_a_run_whose_execution_ends_as_it_joins_gets_its_outcome() {
    let stage = Stage::new(Decided::new(|_, _| later(500, say("done"))));
    let permit = Arc::new(Notify::new());
    let late = Arc::clone(&permit);
    let host = stage.start_with(Box::new(move |commit, _| match commit.write {
        Write::Wake { .. } => Fate::HearsLater(Arc::clone(&late)),
        _ => Fate::Pass,
    }));
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let node = Arc::clone(&host.node);
    let run = tokio::spawn(async move { node.run(session, None).await.unwrap() });
    stage.when("the wake", || woken(&stage)).await;
    stage.idle(session).await;
    permit.notify_one();
    let outcome = run.await.unwrap();
    assert_eq!(outcome.terminal, Some(Terminal::Succeeded));
    assert!(outcome.ran);
    assert_eq!(stage.count(session, "execution.started").await, 1);
}
