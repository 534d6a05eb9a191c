//! A run that comes when the execution has ended, and its node has not heard so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_core::commit::{Append, Write};
use mainstay_core::coordinator::Terminal;
use mainstay_core::tail::{InputStatus, Tail};
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::Stage;
use mainstay_test_simulation::plugins::say;
use mainstay_test_simulation::world::lines;
use tokio::sync::Notify;

#[tokio::test(start_paused = true)]
async fn coord_7_a_run_behind_the_terminal_runs_what_it_has_woken() {
    for forced in [false, true] {
        let stage = Stage::new(Decided::new(|_, _| say("ok")));
        let (permit, first) = (Arc::new(Notify::new()), AtomicBool::new(true));
        let late = Arc::clone(&permit);
        let host = stage.start_with(Box::new(move |commit, _| match &commit.write {
            Write::Append(Append { end: Some(_), .. }) if first.swap(false, Ordering::SeqCst) => {
                Fate::HearsLater(Arc::clone(&late))
            }
            _ => Fate::Pass,
        }));
        let session = stage.create("default").await;
        let mut cleared = None;
        if !forced {
            cleared = Some(stage.prompt(session, "put off").await);
            let write = Write::Interrupt {
                cause: None,
                and_continue: false,
            };
            stage.write(session, write).await.unwrap();
        }
        // A steer wakes steers alone.
        host.steer(session, "go").await;
        let over = |tail: &Tail| tail.claim.is_none() && tail.session.last_turn.is_some();
        let tail = stage.until(session, "the terminal", over).await;
        assert_eq!(tail.inputs.len(), usize::from(!forced));

        let (node, before) = (Arc::clone(&host.node), host.link.commits());
        let run = tokio::spawn(async move { node.run(session, forced.then_some(4)).await });
        stage
            .when("its wake", || host.link.commits() > before)
            .await;
        permit.notify_one();
        let outcome = run.await.unwrap().unwrap();
        assert_eq!(outcome.terminal, Some(Terminal::Succeeded));
        let dump = stage.dump(session).await;
        let input = dump.inputs.iter().find(|input| Some(input.id) == cleared);
        assert!(
            input.is_none_or(|input| input.status == InputStatus::Promoted),
            "{}",
            lines(&dump)
        );
        assert_eq!(stage.count(session, "execution.started").await, 2);
    }
}
